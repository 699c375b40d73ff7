"""Runs of every kind give the same bits on every way to the server: through a standby, an aggregator, or both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest
from _pytest.mark import ParameterSet

from atoll.wire.v1 import control_pb2
from tests.object_storage import CREDENTIALS, ObjectStore
from tests.patience import WAIT_S
from tests.postgresql import DatabaseServer
from tests.system.aggregators import Site
from tests.system.clients import Client, crew
from tests.system.features import FEATURES, played
from tests.system.operators import PAUSED, RUNNING
from tests.system.processes import nursery
from tests.system.reference import SIZE
from tests.system.servers import Server
from tests.system.standbys import standing_by, write_config
from tests.system.test_aggregators import PATIENT
from tests.system.test_private_kills import STEADY

pytestmark = pytest.mark.system

DIRECT = "direct"
WAYS = ("standby", "aggregator", "aggregator of a standby")
Outcome = dict[str, Any]


class Ways:
    """A server, a standby and an aggregator, and participants, two of which use the tested way."""

    def __init__(
        self, server: Server, second: Server, site: Site, clients: list[Client], wanted: Mapping[str, Sequence[str]]
    ) -> None:
        self.wanted = wanted
        self.server = server
        self.second = second
        self.site = site
        self.clients = clients
        self.played = cache(self._played)

    def take(self, way: str) -> None:
        """Move the participants; participant 0 stays with the server."""
        for client in self.clients:
            client.process.terminate()
        if way == WAYS[2]:
            self.site.process.terminate()
            self.site.upstream = self.second.address
            self.site.start()
        address = {DIRECT: self.server.address, WAYS[0]: self.second.address}.get(way, self.site.address)
        for client in self.clients:
            client.options = ("--server", self.server.address if client is self.clients[0] else address)
            client.start()
        for client in self.clients:
            client.wait("connected")

    def _played(self, way: str) -> dict[str, Outcome | Exception]:
        """The outcome of each wanted feature on this way."""
        self.take(way)
        found: dict[str, Outcome | Exception] = {}
        for name in self.wanted[way]:
            try:
                found[name] = played(self.server.operator, FEATURES[name], self.clients)
            except (AssertionError, grpc.RpcError) as error:
                found[name] = error
                self._give_up()
        return found

    def _give_up(self) -> None:
        """Cancel a run that failed its test, so that it does not block the next ones."""
        operator = self.server.operator
        for run in operator.stub.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S).runs:
            if run.status in (RUNNING, PAUSED):
                operator.cancel(run.run, "its test failed")
                operator.ended(run.run)


@pytest.fixture(scope="module")
def ways(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    database_server: DatabaseServer,
    object_store: ObjectStore,
) -> Iterator[Ways]:
    """An active server with a standby and an aggregator, and participants enrolled for the aggregator."""
    here = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == Path(__file__)]
    tested = [(str(item.callspec.params["way"]), str(item.callspec.params["feature"])) for item in here]
    wanted = {way: [feature for other, feature in tested if other == way] for way in WAYS}
    wanted[DIRECT] = list(dict.fromkeys(feature for _, feature in tested))
    folder = tmp_path_factory.mktemp("ways")
    config = write_config(folder / "server.toml", database_server.new("ways"), object_store.new())
    with nursery(folder / "processes") as processes:
        server = Server(processes, "first", "--config", str(config), *PATIENT)
        server.env = {**CREDENTIALS, "ATOLL_NOISE_SECRET": "07" * 32}
        server.start(dies=STEADY)
        second = standing_by(server, "second", config)
        site = Site(processes, server, "north").start()
        with crew(server, folder / "crew") as people:
            clients = [
                people.add("Versatile", token=token, index=index)
                for index, token in enumerate(site.tokens(SIZE, organisation="acme"))
            ]
            for client in clients:
                client.options = ("--server", server.address)
                client.start()
            yield Ways(server, second, site, clients, wanted)
        server.close()


def pairs() -> Iterator[ParameterSet]:
    """Each feature on each way; always one way for each feature, and each way with features of each kind."""
    for at, way in enumerate(WAYS):
        for number, feature in enumerate(FEATURES):
            always = number % len(WAYS) == at
            marks = () if always else pytest.mark.every_case
            yield pytest.param(way, feature, marks=marks, id=f"{way}-{feature}")


@pytest.mark.parametrize(("way", "feature"), list(pairs()))
def test_a_run_has_the_same_bits_as_without(ways: Ways, way: str, feature: str) -> None:
    expected, found = ways.played(DIRECT)[feature], ways.played(way)[feature]
    for outcome in (expected, found):
        if isinstance(outcome, Exception):
            raise outcome
    assert found == expected
