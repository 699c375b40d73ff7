"""Three servers at one database and one bucket serve participants and fail at random, from a seed, during a run."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from atoll.server.buckets import BucketPlace
from tests.postgresql import DatabaseServer
from tests.system.clients import Client, crew
from tests.system.conftest import undisturbed
from tests.system.fleets import Fault, Fleet, fleet
from tests.system.processes import Nursery
from tests.system.reference import KILLED_JOB, KILLED_MODEL, KILLED_ROUNDS, assert_undisturbed
from tests.system.servers import Server

pytestmark = pytest.mark.system
log = logging.getLogger(__name__)

FAULTS = 4
ROUNDS = 10
"""As many as go on while the servers fail."""
LONGEST_PAUSE_S = 1.0


def fleet_job(rounds: int) -> str:
    """``KILLED_JOB`` with this many rounds."""
    return KILLED_JOB.replace(f"rounds = {KILLED_ROUNDS}", f"rounds = {rounds}")


@pytest.fixture(scope="module")
def undisturbed_model(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final model of a run of ``ROUNDS`` that nothing disturbs."""
    return undisturbed(shared_server, tmp_path_factory.mktemp("undisturbed-fleet"), fleet_job(ROUNDS), KILLED_MODEL)


@dataclass(frozen=True)
class Training:
    """Servers and participants during a run."""

    servers: Fleet
    clients: list[Client]


@contextlib.contextmanager
def training(
    processes: Nursery,
    database_server: DatabaseServer,
    s3: BucketPlace,
    undisturbed_model: bytes,
    rounds: int = ROUNDS,
    held: Sequence[int] = (),
) -> Iterator[Training]:
    """A run of ``KILLED_JOB`` on three servers; after the block it ends with the same bits as without faults.

    Participants wait in the rounds ``held``.
    """
    with fleet(processes, 3, database_server.new("fleet"), s3) as servers:
        first = servers.members[0].server
        with crew(first, processes.folder / "crew", eager=True) as people:
            clients = [
                people.start("Held", "--server", entrance.address, index=index, rounds=list(held))
                for index, entrance in enumerate(servers.entrances)
            ]
            for client in clients:
                client.wait("connected")
            with servers.operator() as operator:
                run = operator.submit(fleet_job(rounds), KILLED_MODEL)
            yield Training(servers, clients)
            servers.finished(run)
            with servers.operator() as operator:
                assert operator.model(run) == undisturbed_model
                assert_undisturbed(operator, run, clients, rounds)


def test_servers_fail_again_and_again_and_the_run_ends_with_the_same_bits(
    processes: Nursery,
    database_server: DatabaseServer,
    s3: BucketPlace,
    undisturbed_model: bytes,
    fault_seed: int,
) -> None:
    """No acknowledged report is lost, none counts twice, and no participant trains twice for a round.

    Participants are spread over all servers, and standbys fail too.
    """
    draw = random.Random(f"fleet {fault_seed}")
    with training(processes, database_server, s3, undisturbed_model) as at_work:
        servers = at_work.servers
        for _ in range(FAULTS):
            time.sleep(draw.uniform(0.0, LONGEST_PAUSE_S))
            fault = draw.choice((*Fault, servers.lose_bucket, servers.slow_bucket, servers.lose_peers))
            if not isinstance(fault, Fault):
                fault(draw.uniform(0.0, LONGEST_PAUSE_S))
            elif draw.random() < 1 / 3:
                servers.fail_standby(fault)
            else:
                servers.fail(fault)
            servers.spread()
    for fault, seconds in servers.failovers:
        log.info("failover after %s: %.2f s", fault, seconds)


def test_the_database_is_away_for_all_servers_and_the_run_ends_with_the_same_bits(
    processes: Nursery, database_server: DatabaseServer, s3: BucketPlace, killed_undisturbed: bytes
) -> None:
    """Longer than a server keeps its turn: it steps down, and no server can take over until the database is back.

    The participants report while it is away.
    """
    with training(processes, database_server, s3, killed_undisturbed, KILLED_ROUNDS, held=[1]) as at_work:
        for client in at_work.clients:
            client.wait("held", round=1)
        with at_work.servers.without_database():
            for client in at_work.clients:
                client.go()
            at_work.servers.members[0].server.process.wait_for_log("this server stops, and stands by")
