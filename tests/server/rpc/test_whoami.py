"""``whoami`` lists what the server lets an operator do, and figures count what it may see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from atoll.server.identity import OperatorRole
from atoll.server.rpc.operations import OPERATIONS, ROLE_NUMBERS, Concern
from atoll.wire.v1 import control_pb2 as pb
from tests.patience import WAIT_S
from tests.server.rpc.test_operators import DAY_S
from tests.server.rpc.test_projects import (
    ADMINISTRATOR,
    OPERATOR,
    VIEWER,
    enrolled,
    new_project,
    submit,
    token,
    with_role,
    within,
)
from tests.server.rpc.world import Caller, Key, World, each, refusal

pytestmark = pytest.mark.slow

REFUSALS = ("operator.role", "operator.organisation", "project.closed")
ABSENT = "raaaaaaaaaaaa"
HARMLESS: Mapping[str, Any] = {
    "UploadModel": lambda: each([pb.UploadModelRequest()]),
    "SubmitRun": pb.SubmitRunRequest,
    "PauseRun": lambda: pb.PauseRunRequest(run=ABSENT),
    "ResumeRun": lambda: pb.ResumeRunRequest(run=ABSENT),
    "CancelRun": lambda: pb.CancelRunRequest(run=ABSENT),
    "ExtendRun": lambda: pb.ExtendRunRequest(run=ABSENT),
    "DeleteRun": lambda: pb.DeleteRunRequest(run=ABSENT),
    "GetRunModel": lambda: pb.GetRunModelRequest(run=ABSENT),
    "CreateToken": pb.CreateTokenRequest,
    "VoidTokens": pb.VoidTokensRequest,
    "RevokeParticipant": lambda: pb.RevokeParticipantRequest(participant="paaaaaaaaaaaa"),
    "CreateOperator": lambda: pb.CreateOperatorRequest(name="no name"),
    "SetOperatorRole": lambda: pb.SetOperatorRoleRequest(name="nobody", role=pb.OPERATOR_ROLE_VIEWER),
    "RevokeOperator": lambda: pb.RevokeOperatorRequest(name="nobody"),
    "CreateProject": lambda: pb.CreateProjectRequest(project="no name"),
    "SetProjectQuota": lambda: pb.SetProjectQuotaRequest(project="none"),
    "CloseProject": lambda: pb.CloseProjectRequest(project="none"),
    "PruneStorage": lambda: pb.PruneStorageRequest(dry_run=True),
    "ListCharges": lambda: pb.ListChargesRequest(population="cardio/none"),
    "LimitPopulation": lambda: pb.LimitPopulationRequest(population="cardio/none"),
}
"""For each method with an action a request that changes nothing, also for who may call it."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data") as world:
        await new_project(world, "cardio")
        yield world


async def whoami(caller: Caller, project: str = "") -> pb.WhoAmIResponse:
    metadata = within(project) if project else None
    return await caller.control.WhoAmI(pb.WhoAmIRequest(), timeout=WAIT_S, metadata=metadata)


async def is_allowed(caller: Caller, method: str, project: str = "") -> bool:
    """Whether a call gets past the roles."""
    call = getattr(caller.control, method)
    try:
        await call(HARMLESS[method](), timeout=WAIT_S, metadata=within(project) if project else None)
    except grpc.aio.AioRpcError as error:
        found = await refusal(_raised(error))
        assert found.detail is not None, f"{method}: {found}"
        return found.detail.code not in REFUSALS
    return True


async def _raised(error: grpc.aio.AioRpcError) -> None:
    raise error


async def assert_true(caller: Caller, project: str = "") -> None:
    """What ``whoami`` lists is what the server allows, action by action."""
    found = await whoami(caller, project)
    for method, operation in OPERATIONS.items():
        if operation.action:
            listed = found.server_actions if operation.concern is Concern.SERVER else found.actions
            said = operation.action in listed
            assert said == await is_allowed(caller, method, project), f"{method} in {project!r}"


async def everywhere(world: World, name: str, role: OperatorRole, *, in_cardio: OperatorRole) -> Caller:
    key = Key()
    request = pb.CreateOperatorRequest(name=name, csr_pem=key.csr, lifetime_s=DAY_S, role=ROLE_NUMBERS[role])
    made = await world.operator.control.CreateOperator(request, timeout=WAIT_S)
    less = pb.SetOperatorRoleRequest(name=name, role=ROLE_NUMBERS[in_cardio])
    await world.operator.control.SetOperatorRole(less, timeout=WAIT_S, metadata=within("cardio"))
    return Caller(await world.channel(key.pem, made.certificate_pem))


@pytest.mark.parametrize("role", list(OperatorRole))
async def test_in_a_project_it_lists_what_the_role_there_allows(world: World, role: OperatorRole) -> None:
    there = await with_role(world, "dora", role, "cardio")
    await assert_true(there)
    await assert_true(there, "cardio")
    found = await whoami(there)
    assert (list(found.server_actions), found.server_role) == ([], pb.OPERATOR_ROLE_UNSPECIFIED)


async def test_for_one_organisation_it_lists_less(world: World) -> None:
    carol = await with_role(world, "carol", ADMINISTRATOR, "cardio", organisation="north")
    await assert_true(carol)
    assert "token.create" in (await whoami(carol)).actions


async def test_the_role_in_all_counts_for_the_server_beside_another_in_the_project(world: World) -> None:
    frank = await everywhere(world, "frank", OPERATOR, in_cardio=VIEWER)
    await assert_true(frank, "cardio")
    found = await whoami(frank, "cardio")
    assert (list(found.actions), list(found.server_actions)) == (
        ["ledger.export", "operator.create"],
        ["storage.prune"],
    )
    assert "run.submit" in (await whoami(frank)).actions
    assert found.server_role == pb.OPERATOR_ROLE_OPERATOR


async def test_in_a_closed_project_nothing_begins(world: World) -> None:
    boss = await with_role(world, "boss", ADMINISTRATOR, "cardio")
    before = set((await whoami(boss)).actions)
    run = await submit(boss)
    await boss.control.CancelRun(pb.CancelRunRequest(run=run), timeout=WAIT_S)
    await world.operator.control.CloseProject(pb.CloseProjectRequest(project="cardio"), timeout=WAIT_S)
    missing = before - set((await whoami(boss)).actions)
    assert missing == {"model.upload", "run.submit", "run.extend", "token.create"}
    for method in ("UploadModel", "SubmitRun", "CreateToken"):
        assert not await is_allowed(boss, method), method
    extend = boss.control.ExtendRun(pb.ExtendRunRequest(run=run, rounds=1), timeout=WAIT_S)
    found = await refusal(extend)
    assert found.detail is not None
    assert found.detail.code == "project.closed"


class TestFiguresForOneOrganisation:
    async def test_connected_and_enrolled_are_of_the_organisation(self, world: World) -> None:
        boss = await with_role(world, "boss", ADMINISTRATOR, "cardio")
        carol = await with_role(world, "carol", OPERATOR, "cardio", organisation="north")
        await submit(boss)
        north, south = await enrolled(world, boss, "north"), await enrolled(world, boss, "south")
        async with south.check_in():
            assert await self._figures(boss) == (2, 1, 1, True)
            assert await self._figures(carol) == (1, 0, None, False)
            async with north.check_in():
                assert await self._figures(carol) == (1, 1, None, False)

    async def _figures(self, caller: Caller) -> tuple[int, int, int | None, bool]:
        (found,) = (await caller.control.ListProjects(pb.ListProjectsRequest(), timeout=WAIT_S)).projects
        info = await caller.control.GetServerInfo(pb.GetServerInfoRequest(), timeout=WAIT_S)
        assert info.connected == found.connected
        runs = found.runs if found.HasField("runs") else None
        return found.participants, found.connected, runs, found.HasField("model_bytes") and found.HasField("quota")

    async def test_a_full_project_is_refused_without_its_figures(self, world: World) -> None:
        quota = pb.SetProjectQuotaRequest(project="cardio", quota=pb.ProjectQuota(participants=7))
        await world.operator.control.SetProjectQuota(quota, timeout=WAIT_S)
        boss = await with_role(world, "boss", ADMINISTRATOR, "cardio")
        carol = await with_role(world, "carol", OPERATOR, "cardio", organisation="north")
        await token(boss, organisation="south", count=6)
        for caller, told in ((boss, True), (carol, False)):
            found = await refusal(token(caller, organisation="north", count=2))
            assert found.detail is not None
            assert found.detail.code == "project.participants"
            assert ("6 unused" in found.detail.message, "of 7" in found.detail.message) == (told, told)
