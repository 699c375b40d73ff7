"""Several servers at one PostgreSQL database: one is active, and another takes over when it ends, dies or freezes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.patience import WAIT_S
from tests.ports import free_ports
from tests.postgresql import DatabaseServer
from tests.system.conftest import Hire, Serve
from tests.system.mid_round import mid_round
from tests.system.processes import Nursery, atoll
from tests.system.proxy import Proxy
from tests.system.servers import Server
from tests.system.test_server_crashes import assert_each_counted_once

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
TAKEOVER_S = 10.0
"""Longer than the default: a server that a busy machine lets stand still for seconds must stay the active one."""


@pytest.fixture
def pair(serve: Serve, tmp_path: Path, database_server: DatabaseServer) -> tuple[Server, Server]:
    """An active server and a standby, on one database and one blob store."""
    config = tmp_path / "server.toml"
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    places = f'database = "{database_server.new("pair")}"\nblobs = "{bucket.as_uri()}"\n'
    config.write_text(f"[storage]\n{places}takeover_s = {TAKEOVER_S}\n")
    first = serve("first", "--config", str(config))
    second = Server(first.nursery, "second", "--config", str(config))
    atoll("server", "standby", str(second.data), "--data", str(first.data))
    second.launch()
    second.process.wait_for_log(f"standing by: {first.address} is the active server")
    return first, second


@contextlib.contextmanager
def haproxy(nursery: Nursery, first: Server, second: Server) -> Iterator[str]:
    """The address of HAProxy, configured as in ``deploy/haproxy`` except for the ports."""
    port = free_ports()
    config = (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8")
    for name, server in (("FIRST", first), ("SECOND", second)):
        for offset in range(3):
            config = config.replace(
                f'"${{{name}}}:{7400 + offset}"', f"127.0.0.1:{server.port + offset} port {server.port + 3}"
            )
    config = config.replace("maxconn 20000", "maxconn 500")
    for offset in range(3):
        config = config.replace(f"bind :{7400 + offset}", f"bind 127.0.0.1:{port + offset}")
    path = nursery.folder / "haproxy.cfg"
    path.write_text(config, encoding="utf-8")
    nursery.start(("haproxy", "-f", str(path)), "haproxy")
    yield f"127.0.0.1:{port}"


def kill(server: Server) -> None:
    server.kill()


def freeze(server: Server) -> None:
    server.process.send(signal.SIGSTOP)


def stop(server: Server) -> None:
    assert server.stop() == 0


@pytest.mark.parametrize("fail", [kill, freeze, stop])
def test_another_server_takes_over_in_mid_round_and_the_run_ends_with_the_same_bits(
    pair: tuple[Server, Server], hire: Hire, reference_model: bytes, fail: Callable[[Server], None]
) -> None:
    first, second = pair
    with Proxy(first.address) as balancer:
        middle = mid_round(first, hire(first), "--server", balancer.address)
        fail(first)
        second.serves()
        balancer.turn_to(second.address)
        middle.at_work.go()
        second.operator.finished(middle.run)
    assert second.operator.model(middle.run) == reference_model
    assert_each_counted_once(second.operator, middle.run)
    if fail is freeze:
        first.process.send(signal.SIGCONT)
        first.process.wait_for_log("; this server stops, and stands by")
        first.process.wait_for_log(f"standing by: {second.address} is the active server")
        assert second.operator.model(middle.run) == reference_model


def test_without_the_database_both_stand_by_and_one_goes_on(
    pair: tuple[Server, Server], database_server: DatabaseServer
) -> None:
    first, second = pair
    while _standbys(first) < 1:
        time.sleep(0.1)
    database_server.stop()
    try:
        first.process.wait_for_log("1 other server stands by; this server stops, and stands by")
        first.process.wait_for_log("standing by: the database does not answer")
    finally:
        database_server.start()
    assert first.stop() == 0
    second.serves()


def _standbys(server: Server) -> float:
    with urlopen(f"http://127.0.0.1:{server.port + 3}/metrics", timeout=WAIT_S) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("atoll_standby_servers "))


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy (Debian: haproxy) is not installed")
@pytest.mark.parametrize("fail", [kill, pytest.param(freeze, marks=pytest.mark.every_fault)])
def test_a_balancer_brings_participants_to_the_server_that_took_over(
    pair: tuple[Server, Server],
    hire: Hire,
    processes: Nursery,
    reference_model: bytes,
    fail: Callable[[Server], None],
) -> None:
    """Participants are told nothing: HAProxy asks ``/readyz``, and cuts connections to a failing server.

    It spreads participants over both servers.
    """
    first, second = pair
    with haproxy(processes, first, second) as address:
        middle = mid_round(first, hire(first), "--server", address)
        fail(first)
        second.serves()
        middle.at_work.go()
        second.operator.finished(middle.run)
    assert second.operator.model(middle.run) == reference_model
    assert_each_counted_once(second.operator, middle.run)
