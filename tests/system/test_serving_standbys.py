"""Standbys serve participants: split over them, a run has the same bits despite deaths and take-overs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import grpc
import pytest

from atoll.server.buckets import BucketPlace
from atoll.wire.join_token import JoinToken
from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S
from tests.postgresql import DatabaseServer
from tests.system.aggregators import Site
from tests.system.clients import Client
from tests.system.conftest import Hire, Serve
from tests.system.operators import Arrays, Operator
from tests.system.processes import Nursery
from tests.system.proxy import Proxy
from tests.system.reference import (
    JOB,
    KILLED_JOB,
    KILLED_MODEL,
    KILLED_ROUNDS,
    MODEL,
    ROUNDS,
    SIZE,
    assert_undisturbed,
)
from tests.system.servers import Server
from tests.system.standbys import metric, page, standing_by, write_config

pytestmark = pytest.mark.system

Standby = Callable[[str], Server]


@pytest.fixture
def first(serve: Serve, tmp_path: Path, database_server: DatabaseServer, s3: BucketPlace) -> Server:
    """The active server, with PostgreSQL and S3."""
    return serve("first", "--config", str(write_config(tmp_path / "server.toml", database_server.new("standbys"), s3)))


@pytest.fixture
def stand_by(first: Server, tmp_path: Path) -> Standby:
    """Makes standbys, which serve participants."""
    return lambda name: standing_by(first, name, tmp_path / "server.toml")


def credential_at(server: Server, first: Server) -> Path:
    """The administrator's credential for a server other than the first one."""
    credential = server.nursery.folder / "operator.json"
    known = json.loads((first.data / "operator.json").read_text())
    credential.write_text(json.dumps(known | {"address": server.address}))
    credential.chmod(0o600)
    return credential


def at(server: Server) -> tuple[str, str]:
    """The options of a client that goes to this server."""
    return "--server", server.address


def test_participants_split_over_servers_give_the_same_bits(
    first: Server, stand_by: Standby, hire: Hire, killed_undisturbed: bytes
) -> None:
    second = stand_by("second")
    assert page(second, "/active")[0] == HTTPStatus.SERVICE_UNAVAILABLE
    assert page(first, "/active")[0] == HTTPStatus.OK
    crew = hire(first)
    clients = [crew.start("Steady", *at(server), index=index) for index, server in enumerate((first, second, second))]
    for client in clients:
        client.wait("connected")
    assert [metric(server, "atoll_check_ins_open") for server in (first, second)] == [1, 2]
    run = first.operator.submit(KILLED_JOB, KILLED_MODEL)
    first.operator.finished(run)
    assert first.operator.model(run) == killed_undisturbed
    assert_undisturbed(first.operator, run, clients, KILLED_ROUNDS)
    received = [metric(server, "atoll_upload_bytes_total") for server in (first, second)]
    assert received[1] == 2 * received[0] > 0
    folds = [metric(server, "atoll_fold_duration_seconds_count") for server in (first, second)]
    assert folds == [KILLED_ROUNDS, 2 * KILLED_ROUNDS]


def test_a_standby_receives_in_as_many_processes_as_the_active_server(
    first: Server, tmp_path: Path, hire: Hire, killed_undisturbed: bytes
) -> None:
    """Even after it takes over: its workers end, and the workers of the active server start on the same port."""
    second = standing_by(first, "second", tmp_path / "server.toml", "--workers", "2")
    crew = hire(first)
    clients = [crew.start("Steady", *at(second), index=index) for index in range(SIZE)]
    for client in clients:
        client.wait("connected")
    run = first.operator.submit(KILLED_JOB, KILLED_MODEL)
    first.operator.finished(run)
    assert first.operator.model(run) == killed_undisturbed
    assert_undisturbed(first.operator, run, clients, KILLED_ROUNDS)
    received = {name: metric(second, "atoll_upload_bytes_total", name) for name in ("main", "worker-0", "worker-1")}
    assert received["main"] == 0
    assert received["worker-0"] + received["worker-1"] == metric(second, "atoll_upload_bytes_total") > 0
    assert metric(second, "atoll_fold_duration_seconds_count") == SIZE * KILLED_ROUNDS
    first.kill()
    second.serves()
    again = second.operator.submit(KILLED_JOB, KILLED_MODEL)
    second.operator.finished(again)
    assert second.operator.model(again) == killed_undisturbed


def hold_mid_round(operator: Operator, clients: list[Client], held: Client, job: str, model: Arrays) -> str:
    """Begin a run, and wait until its round 1 lacks one client's report."""
    run = operator.submit(job, model)
    held.wait("held", round=1)
    for client in clients:
        if client is not held:
            client.wait("reported", round=1)
    return run


def test_nothing_that_a_killed_standby_acknowledged_is_lost(
    first: Server, stand_by: Standby, hire: Hire, killed_undisturbed: bytes
) -> None:
    """Its sums and copies of updates are lost with it; its participants return to the next process."""
    second = stand_by("second")
    crew = hire(first)
    clients = [crew.start("Steady", *at(second), index=index) for index in range(2)]
    clients.append(crew.start("Held", *at(first), index=2, rounds=[1]))
    run = hold_mid_round(first.operator, clients, clients[2], KILLED_JOB, KILLED_MODEL)
    second.kill()
    shutil.rmtree(second.data / "spool")
    clients[2].go()
    clients[2].wait("reported", round=1)
    first.operator.until(run, lambda seen: seen.summary.rounds_released > 1, "past its round 1")
    second.launch()
    first.operator.finished(run)
    assert first.operator.model(run) == killed_undisturbed
    assert_undisturbed(first.operator, run, clients, KILLED_ROUNDS)


def at_work(servers: list[Server]) -> Server:
    """Wait until one of these servers is active."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        for server in servers:
            with contextlib.suppress(OSError):
                if page(server, "/active")[0] == HTTPStatus.OK:
                    return server
        time.sleep(0.05)
    raise AssertionError([server.process.log[-2000:] for server in servers])


@pytest.mark.parametrize("held", [0, *(pytest.param(other, marks=pytest.mark.every_case) for other in (1, 2))])
def test_a_standby_takes_over_while_standbys_serve_participants(
    first: Server, stand_by: Standby, hire: Hire, reference_model: bytes, held: int
) -> None:
    """One participant is at the dying server, one at the server that takes over, one at a remaining standby."""
    servers = [first, stand_by("second"), stand_by("third")]
    with Proxy(first.address) as balancer:
        crew, addresses = hire(first), [balancer.address, *(server.address for server in servers[1:])]
        clients = [
            crew.start("Held", "--server", address, index=index, rounds=[1] if index == held else [])
            for index, address in enumerate(addresses)
        ]
        run = hold_mid_round(first.operator, clients, clients[held], JOB, MODEL)
        first.kill()
        successor = at_work(servers[1:]).serves()
        balancer.turn_to(successor.address)
        clients[held].go()
        successor.operator.finished(run)
        assert successor.operator.model(run) == reference_model
        assert_undisturbed(successor.operator, run, clients, ROUNDS)
        (waiting,) = {one.name: one for one in servers[1:] if one is not successor}.values()
        assert metric(waiting, "atoll_upload_bytes_total") > 0


def test_a_standby_passes_on_what_only_the_active_server_answers(
    first: Server, stand_by: Standby, hire: Hire, reference_model: bytes
) -> None:
    """Operators and participants without streams may call any server."""
    second = stand_by("second")
    operator = Operator.of(credential_at(second, first))
    try:
        crew = hire(first)
        clients = [crew.start("Steady", *at(second), "--check-in", "unary", index=index) for index in range(SIZE)]
        run = operator.submit(JOB, MODEL)
        operator.finished(run)
        assert_undisturbed(operator, run, clients, ROUNDS)
        assert operator.model(run) == reference_model
    finally:
        operator.close()
    assert metric(second, "atoll_upload_bytes_total") > 0
    assert metric(first, "atoll_upload_bytes_total") == 0


def test_calls_that_it_passes_on_do_not_hold_up_its_stop(first: Server, tmp_path: Path, processes: Nursery) -> None:
    """An aggregator and an operator's watch come through it; their streams have no end of their own."""
    second = standing_by(first, "second", tmp_path / "server.toml", "--drain-s", "600")
    site = Site(processes, first, "north", second.address).start()
    run = first.operator.submit(JOB, MODEL)
    operator = Operator.of(credential_at(second, first))
    try:
        watched = operator.stub.WatchRun(control_pb2.WatchRunRequest(run=run))
        next(watched)
        assert second.stop() == 0
        with pytest.raises(grpc.RpcError, match="the server is stopping"):
            list(watched)
        site.process.wait_for_log("no connection to the server")
    finally:
        operator.close()


def test_newcomers_enrol_at_a_standby_and_are_revoked_there(first: Server, stand_by: Standby, hire: Hire) -> None:
    second = stand_by("second")
    token = JoinToken.decode(first.operator.tokens(1)[0])
    there = dataclasses.replace(token, address=f"127.0.0.1:{second.port + 1}").encode()
    client = hire(first).start("Steady", index=0, token=there)
    participant = client.participant
    assert client.wait("connected")["server"] == second.address
    first.operator.revoke(participant, "left")
    client.process.wait_for_log("was revoked: left")
