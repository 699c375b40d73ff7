"""Servers and participants of two versions side by side: an upgrade without a pause, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text

import atoll.server
from atoll.server.stores import dialects
from atoll.server.stores.schema_version import head_revision
from tests.postgresql import DatabaseServer
from tests.system.conftest import Hire, Serve
from tests.system.next_version import VERSION, NextVersion, make_next_version
from tests.system.processes import atoll as atoll_command
from tests.system.proxy import Proxy
from tests.system.reference import JOB, MODEL
from tests.system.servers import Server
from tests.system.standbys import STEADY
from tests.system.test_server_crashes import assert_each_counted_once

pytestmark = pytest.mark.system


@dataclass
class Pair:
    """A server of the current version, active, a standby of the next version, and their database."""

    current: Server
    next: Server
    version: NextVersion
    url: str

    def value(self, query: str) -> object:
        """The one value of a query of the database."""
        engine = dialects.reader_engine(dialects.parse_url(self.url), connections=1)
        try:
            with engine.connect() as connection:
                return connection.execute(text(query)).scalar_one()
        finally:
            engine.dispose()

    @property
    def revision(self) -> object:
        """The revision that the database is at."""
        return self.value("SELECT version_num FROM alembic_version")


@pytest.fixture
def pair(serve: Serve, tmp_path: Path, database_server: DatabaseServer) -> Iterator[Pair]:
    url, bucket, config = database_server.new("versions"), tmp_path / "bucket", tmp_path / "server.toml"
    bucket.mkdir()
    config.write_text(f'[storage]\n{STEADY}\ndatabase = "{url}"\nblobs = "{bucket.as_uri()}"\n')
    debug = ("--log-level", "debug")  # names the versions of clients
    current = serve("current", "--config", str(config), *debug)
    version = make_next_version(tmp_path / "next-version")
    following = Server(current.nursery, "next", "--config", str(config), *debug)
    following.prefix, following.env = version.prefix, version.env
    atoll_command("server", "standby", str(following.data), "--data", str(current.data))
    following.launch()
    following.process.wait_for_log(f"standing by: {current.address} is the active server")
    yield Pair(current, following, version, url)
    following.close()


def test_an_upgrade_and_the_way_back_in_mid_round_give_the_bits_of_one_version(
    pair: Pair, hire: Hire, reference_model: bytes
) -> None:
    """One participant has the next version; each participant works with servers of both versions."""
    current, following, before = pair.current, pair.next, head_revision()
    with Proxy(current.address) as balancer:
        through = ("--server", balancer.address)
        crew = hire(current)
        newer = crew.add("Steady", *through, index=1)
        newer.prefix, newer.env = pair.version.prefix, pair.version.env
        steady = [crew.start("Steady", *through, index=0), newer.start()]
        held = crew.start("Held", *through, index=2, rounds=[1, 3])
        run = current.operator.submit(JOB, MODEL)

        held.wait("held", round=1)
        for client in steady:
            client.wait("reported", round=1)
        assert pair.revision == before  # a server that stands by does not touch it
        assert current.stop() == 0
        following.serves()
        assert pair.revision == pair.version.revision
        assert pair.value("SELECT colour FROM runs") == "red"
        balancer.turn_to(following.address)
        held.go()

        held.wait("held", round=3)
        for client in steady:
            client.wait("reported", round=3)
        current.launch()
        current.process.wait_for_log(f"standing by: {following.address} is the active server")
        assert following.stop() == 0
        current.serves()
        newer_schema = f"schema revision {pair.version.revision} (by atoll {VERSION}"
        assert newer_schema in current.process.log
        assert f"newer than the {before} of this atoll {atoll.server.__version__}" in current.process.log
        balancer.turn_to(current.address)
        held.go()
        current.operator.finished(run)
        second = current.operator.submit(JOB.replace("rounds = 5", "rounds = 1"), MODEL)
        current.operator.finished(second)
        for server in (current, following):
            assert f"client version {VERSION}" in server.process.log
            assert f"client version {atoll.server.__version__}" in server.process.log
    assert current.operator.model(run) == reference_model
    assert_each_counted_once(current.operator, run)
    assert pair.revision == pair.version.revision
    assert pair.value("SELECT count(*) FROM runs WHERE colour = 'red'") == 2
