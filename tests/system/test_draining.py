"""SIGTERM during an upload: it ends here or is sent again elsewhere, and counts once with the same bits."""

from __future__ import annotations

import signal
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.patience import WAIT_S
from tests.postgresql import DatabaseServer
from tests.system.aggregators import Site
from tests.system.conftest import Hire, Serve, undisturbed
from tests.system.participants import examples_of
from tests.system.processes import Nursery, atoll
from tests.system.proxy import Proxy
from tests.system.reference import JOB, LARGE_JOB, LARGE_MODEL, MODEL, SIZE
from tests.system.servers import Server
from tests.system.standbys import STEADY

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def large_model(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final model of an undisturbed ``LARGE_JOB``."""
    return undisturbed(shared_server, tmp_path_factory.mktemp("undisturbed-large"), LARGE_JOB, LARGE_MODEL)


def ready(server: Server) -> bool:
    """Whether a balancer would lead participants to it."""
    try:
        with urlopen(f"http://127.0.0.1:{server.port + 3}/readyz", timeout=WAIT_S) as response:
            return bool(response.status == HTTPStatus.OK)
    except HTTPError as error:
        return "the server is starting or stopping" not in error.read().decode()


@pytest.mark.parametrize("drain_s", [0, 600])
def test_an_upload_under_way_counts_once(
    serve: Serve, hire: Hire, tmp_path: Path, database_server: DatabaseServer, large_model: bytes, drain_s: int
) -> None:
    """With time to drain the first server takes the update and releases the round; without, the second one does."""
    config, bucket = tmp_path / "server.toml", tmp_path / "bucket"
    bucket.mkdir()
    places = f'database = "{database_server.new("drained")}"\nblobs = "{bucket.as_uri()}"\n'
    config.write_text(f"[storage]\n{STEADY}\n{places}")
    first = serve("first", "--config", str(config), "--drain-s", str(drain_s))
    second = Server(first.nursery, "second", "--config", str(config))
    atoll("server", "standby", str(second.data), "--data", str(first.data))
    second.launch()
    second.process.wait_for_log("standing by: ")
    with Proxy(first.address) as balancer:
        crew = hire(first)
        done = [crew.start("Steady", "--server", balancer.address, index=index) for index in range(SIZE - 1)]
        uploading = crew.start("HeldUpload", "--server", balancer.address, index=SIZE - 1)
        run = first.operator.submit(LARGE_JOB, LARGE_MODEL)
        uploading.wait("held")
        for client in done:
            client.wait("reported")
        assert ready(first)
        if drain_s:
            first.process.send(signal.SIGTERM)
            first.process.wait_for_log("draining for")
            assert not ready(first)
            assert "opening the ports" not in second.process.log
            uploading.go()
            uploading.wait("reported")
            assert first.process.wait() == 0
            assert "train round 1 released" in first.process.log
        else:
            assert first.stop() == 0
            assert "1 upload cut after 0 s (drain_s)" in first.process.log
        second.serves()
        balancer.turn_to(second.address)
        if not drain_s:
            uploading.go()
        second.operator.finished(run)
    assert second.operator.model(run) == large_model
    (released,) = second.operator.rounds(run)
    assert released.attempt == 0
    assert sorted(member.weight for member in released.members) == [examples_of(index) for index in range(SIZE)]
    second.close()


def test_an_upload_to_a_worker_is_reported_before_the_server_stops(
    serve: Serve, hire: Hire, large_model: bytes
) -> None:
    server = serve("workers", "--workers", "2", "--drain-s", "600")
    crew = hire(server)
    done = [crew.start("Steady", index=index) for index in range(SIZE - 1)]
    uploading = crew.start("HeldUpload", index=SIZE - 1)
    run = server.operator.submit(LARGE_JOB, LARGE_MODEL)
    uploading.wait("held")
    for client in done:
        client.wait("reported")
    server.process.send(signal.SIGTERM)
    server.process.wait_for_log("draining for")
    uploading.go()
    uploading.wait("reported")
    assert server.process.wait() == 0
    assert "cut after" not in server.process.log
    server.start()
    server.operator.finished(run)
    assert server.operator.model(run) == large_model
    (released,) = server.operator.rounds(run)
    assert (released.attempt, released.total_weight) == (0, sum(map(examples_of, range(SIZE))))


def test_participants_at_an_aggregator_stay_connected_to_it_and_do_not_hold_up_the_stop(
    serve: Serve, processes: Nursery, hire: Hire, reference_model: bytes
) -> None:
    server = serve("upstream", "--drain-s", "600", "--silence-s", "600")
    site, crew = Site(processes, server, "north").start(), hire(server)
    tokens = site.tokens(SIZE)
    clients = [crew.start("Steady", token=token, index=index) for index, token in enumerate(tokens[1:], 1)]
    held = crew.start("Held", token=tokens[0], index=0, rounds=[1])
    run = server.operator.submit(JOB, MODEL)
    held.wait("held", round=1)
    for client in clients:
        client.wait("reported", round=1)
    assert server.stop() == 0
    server.start()
    site.linked(2)
    held.go()
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    assert not [client.events("disconnected") for client in crew.clients if client.events("disconnected")]
