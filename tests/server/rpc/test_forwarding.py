"""A standby forwards calls over TLS to a real active server, with their caller and project."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from atoll.server.config.limits import DEFAULT_LIMITS
from atoll.server.identity import OperatorRole, Peer
from atoll.server.ingest.coordinator_api import Caller as Known
from atoll.server.ingest.coordinator_api import CoordinatorApi
from atoll.server.process.listeners import Port, bind, make_server, server_credentials
from atoll.server.process.standby_identity import ActiveServer, StandbyIdentity
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.authentication import FORWARDED, Authenticator
from atoll.server.rpc.forwarding import Forwarding
from atoll.server.stores.server_turns import WorkPlace
from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S
from tests.server.rpc.test_operators import DAY_S
from tests.server.rpc.test_projects import new_project, submit, with_role, within
from tests.server.rpc.world import Caller, Key, World, refused_code

pytestmark = pytest.mark.slow

CONTROL = "atoll.wire.v1.ControlService"
VIEWER, OPERATOR, _, ADMINISTRATOR = OperatorRole


async def _identify(pem: bytes) -> Known:
    peer = Peer.from_pem(pem)
    return Known(peer.role, peer.name)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data") as opened:
        yield opened


def place_of(world: World, turn: int) -> WorkPlace:
    return WorkPlace(turn, world.config.certificate_names[0], world.addresses.main, world.addresses.enrolment)


@pytest.fixture
async def at_work(world: World) -> AsyncIterator[ActiveServer]:
    """A standby's connections to the active server."""
    identity = StandbyIdentity.open(world.config)

    def open_channel() -> grpc.aio.Channel:
        return grpc.aio.secure_channel(world.addresses.main, identity.credentials())

    made = ActiveServer(place_of(world, 1), world.ca, open_channel)
    yield made
    await made.close()


@pytest.fixture
async def standby(world: World, at_work: ActiveServer) -> AsyncIterator[str]:
    """Address of a standby's main port, made like in ``StandbyGateway``."""
    identity = StandbyIdentity.open(world.config)
    knows = cast("CoordinatorApi", SimpleNamespace(identify=_identify))
    authenticator = Authenticator(knows, Admission(DEFAULT_LIMITS), insecure=False)
    server = make_server(Port.MAIN, enter=authenticator.enter, connections=authenticator.connections)
    server.add_generic_rpc_handlers((Forwarding([CONTROL], at_work.channel, authenticator),))
    names = world.config.certificate_names
    mutual = server_credentials(identity.authority, names, mutual=True, clock=time.time)
    port = bind(server, "127.0.0.1", 0, mutual)
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def operator_of_two(world: World, standby: str) -> tuple[Caller, Caller]:
    """An operator with roles in two projects: its connections to the active server and to the standby."""
    for name in ("cardio", "onco"):
        await new_project(world, name)
    key = Key()
    create = control_pb2.CreateOperatorRequest(
        name="dora", csr_pem=key.csr, lifetime_s=DAY_S, role=control_pb2.OPERATOR_ROLE_OPERATOR
    )
    made = await world.operator.control.CreateOperator(create, timeout=WAIT_S, metadata=within("cardio"))
    viewer = control_pb2.SetOperatorRoleRequest(name="dora", role=control_pb2.OPERATOR_ROLE_VIEWER)
    await world.operator.control.SetOperatorRole(viewer, timeout=WAIT_S, metadata=within("onco"))
    direct = Caller(await world.channel(key.pem, made.certificate_pem))
    return direct, Caller(await world.channel(key.pem, made.certificate_pem, standby))


async def test_the_project_of_a_call_is_passed_on(world: World, standby: str) -> None:
    _, dora = await operator_of_two(world, standby)
    runs = {
        name: await submit(await with_role(world, f"{name}-boss", ADMINISTRATOR, name)) for name in ("cardio", "onco")
    }
    for name, run in runs.items():
        listed = dora.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S, metadata=within(name))
        assert [one.run for one in (await listed).runs] == [run]
        me = await dora.control.WhoAmI(control_pb2.WhoAmIRequest(), timeout=WAIT_S, metadata=within(name))
        assert (me.name, me.project) == ("dora", name)
    watch = dora.control.WatchRun(
        control_pb2.WatchRunRequest(run=runs["onco"]), timeout=WAIT_S, metadata=within("onco")
    )
    first = await watch.read()
    assert isinstance(first, control_pb2.WatchRunResponse)
    assert first.summary.run == runs["onco"]
    watch.cancel()


async def test_refusals_are_those_of_the_active_server(world: World, standby: str) -> None:
    direct, passed = await operator_of_two(world, standby)
    run = await submit(await with_role(world, "cardio-boss", ADMINISTRATOR, "cardio"))
    tries: tuple[tuple[str, Any, Any], ...] = (
        ("ListRuns", control_pb2.ListRunsRequest(), None),
        ("ListRuns", control_pb2.ListRunsRequest(), within("none")),
        ("GetRun", control_pb2.GetRunRequest(run=run), within("onco")),
        ("PauseRun", control_pb2.PauseRunRequest(run=run), within("onco")),
        ("CreateProject", control_pb2.CreateProjectRequest(project="third"), within("cardio")),
    )
    for method, request, metadata in tries:
        said = [
            await refused_code(getattr(caller.control, method)(request, timeout=WAIT_S, metadata=metadata))
            for caller in (direct, passed)
        ]
        assert said[0] == said[1], (method, said)


async def test_a_caller_cannot_claim_to_be_another(world: World, standby: str) -> None:
    """Both servers refuse the certificate in its metadata."""
    assert world.addresses.operator is not None
    _, dora = await operator_of_two(world, standby)
    claimed = grpc.aio.Metadata((FORWARDED, world.ca), *within("cardio"))
    me = dora.control.WhoAmI(control_pb2.WhoAmIRequest(), timeout=WAIT_S, metadata=claimed)
    assert await refused_code(me) == ("UNAUTHENTICATED", "certificate.forwarded")


async def test_a_call_to_a_server_whose_turn_is_over_ends_at_once(
    world: World, at_work: ActiveServer, standby: str
) -> None:
    """That server may be frozen or cut off, so the caller would wait for its own time limit.

    A connection with a new certificate ends no call.
    """
    _, dora = await operator_of_two(world, standby)
    run = await submit(await with_role(world, "cardio-boss", ADMINISTRATOR, "cardio"))
    watch = dora.control.WatchRun(control_pb2.WatchRunRequest(run=run), timeout=WAIT_S, metadata=within("cardio"))
    await watch.read()
    at_work.go_to(place_of(world, 1))
    listed = dora.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S, metadata=within("cardio"))
    assert [one.run for one in (await listed).runs] == [run]
    assert not watch.done()
    at_work.go_to(place_of(world, 2))
    async with asyncio.timeout(WAIT_S / 2):
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE
    assert "ended before it answered" in str(await watch.details())
