"""Two projects on one real server: no call to one shows or changes anything of the other."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from atoll.server.identity import OperatorRole
from atoll.server.rpc.operations import OPERATIONS, ROLE_NUMBERS, Concern
from atoll.wire.digest import BlobManifest
from atoll.wire.join_token import JoinToken
from atoll.wire.messages import layout_to_proto
from atoll.wire.project import PROJECT
from atoll.wire.v1 import control_pb2, enrolment_pb2, transfer_pb2
from tests.patience import WAIT_S
from tests.server.rpc.test_operators import DAY_S
from tests.server.rpc.world import (
    LAYOUT,
    Caller,
    Key,
    Participant,
    World,
    each,
    initial_values,
    job,
    model_requests,
    refusal,
    refused_code,
)

pytestmark = pytest.mark.slow

VIEWER, OPERATOR, OFFICER, ADMINISTRATOR = OperatorRole
MISSING = "NOT_FOUND"
PRIVATE = """
[aggregation]
weighting = "uniform"
[privacy]
population = "patients"
noise_multiplier = 5.0
max_participations = 2
clip = 1.0
delta = 1e-6
"""


@dataclass
class Tenant:
    """A project with an operator of each role, a participant and a run."""

    name: str
    administrator: Caller
    viewer: Caller
    participant: Participant
    run: str
    blob: str
    token: str


def within(project: str) -> Any:
    return grpc.aio.Metadata((PROJECT, project))


async def new_project(world: World, name: str, **quota: int) -> control_pb2.ProjectSummary:
    request = control_pb2.CreateProjectRequest(project=name, quota=control_pb2.ProjectQuota(**quota))
    return (await world.operator.control.CreateProject(request, timeout=WAIT_S)).project


async def with_role(
    world: World,
    name: str,
    role: OperatorRole,
    project: str,
    *,
    by: Caller | None = None,
    organisation: str = "",
) -> Caller:
    key = Key()
    request = control_pb2.CreateOperatorRequest(
        name=name, csr_pem=key.csr, lifetime_s=DAY_S, role=ROLE_NUMBERS[role], organisation=organisation
    )
    made = (by or world.operator).control.CreateOperator(request, timeout=WAIT_S, metadata=within(project))
    return Caller(await world.channel(key.pem, (await made).certificate_pem))


async def token(by: Caller, *, organisation: str = "acme", count: int = 1, metadata: Any = None) -> list[str]:
    request = control_pb2.CreateTokenRequest(
        organisation=organisation, kind=enrolment_pb2.PARTICIPANT_KIND_EDGE, lifetime_s=600.0, count=count
    )
    return list((await by.control.CreateToken(request, timeout=WAIT_S, metadata=metadata)).tokens)


async def enrolled(world: World, by: Caller, organisation: str = "acme") -> Participant:
    key = Key()
    answer = await world.enrol_with(await world.token(organisation, by=by), key)
    return Participant(await world.channel(key.pem, answer.certificate_pem), answer.participant, key, b"")


async def upload(by: Caller, values: Any = None) -> str:
    raw = (initial_values() if values is None else values).tobytes()
    manifest = BlobManifest.of_buffer(raw, 1024)
    return (await by.control.UploadModel(each(model_requests(raw, manifest)), timeout=WAIT_S)).blob


async def submit(by: Caller, job_toml: bytes | None = None, values: Any = None, blob: str = "") -> str:
    request = control_pb2.SubmitRunRequest(
        job_toml=job() if job_toml is None else job_toml,
        file_name="job.toml",
        layout=layout_to_proto(LAYOUT),
        initial_blob=blob or await upload(by, values),
    )
    return (await by.control.SubmitRun(request, timeout=WAIT_S)).run


async def tenant(world: World, name: str, seed: float) -> Tenant:
    await new_project(world, name)
    administrator = await with_role(world, f"{name}-boss", ADMINISTRATOR, name)
    viewer = await with_role(world, f"{name}-eve", VIEWER, name, by=administrator)
    participant = await enrolled(world, administrator)
    blob = await upload(administrator, initial_values() + seed)
    run = await submit(administrator, blob=blob)
    limit = control_pb2.LimitPopulationRequest(population="patients", epsilon=2.0, delta=1e-6, adjacency="add_remove")
    await administrator.control.LimitPopulation(limit, timeout=WAIT_S)
    (unused,) = await token(administrator)
    return Tenant(name, administrator, viewer, participant, run, blob, unused)


@pytest.fixture
async def tenants(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[tuple[World, Tenant, Tenant]]:
    caplog.set_level(logging.INFO, "atoll")
    async with World(tmp_path / "data") as world:
        yield world, await tenant(world, "cardio", 1.0), await tenant(world, "onco", 2.0)


Asked = Mapping[str, tuple[Any, ...]]


def about(other: Tenant) -> Asked:
    """For each method, the requests that another project's operator could try."""
    run, participant, key = other.run, other.participant.name, Key()
    pb = control_pb2
    return {
        "UploadModel": (),
        "SubmitRun": (
            pb.SubmitRunRequest(
                job_toml=job(), file_name="job.toml", layout=layout_to_proto(LAYOUT), initial_blob=other.blob
            ),
        ),
        "ListRuns": (pb.ListRunsRequest(),),
        "GetRun": (pb.GetRunRequest(run=run, members=True),),
        "WatchRun": (pb.WatchRunRequest(run=run),),
        "PauseRun": (pb.PauseRunRequest(run=run),),
        "ResumeRun": (pb.ResumeRunRequest(run=run),),
        "CancelRun": (pb.CancelRunRequest(run=run),),
        "ExtendRun": (pb.ExtendRunRequest(run=run, rounds=1),),
        "DeleteRun": (pb.DeleteRunRequest(run=run),),
        "GetRunModel": (pb.GetRunModelRequest(run=run, round=0),),
        "CreateToken": (),
        "ListTokens": (pb.ListTokensRequest(),),
        "VoidTokens": (
            pb.VoidTokensRequest(token_ids=[JoinToken.decode(other.token).token_id] if other.token else []),
            pb.VoidTokensRequest(created_by=f"{other.name}-boss"),
        ),
        "ListParticipants": (
            pb.ListParticipantsRequest(),
            pb.ListParticipantsRequest(connected=True),
            pb.ListParticipantsRequest(organisation="acme"),
        ),
        "RevokeParticipant": (pb.RevokeParticipantRequest(participant=participant),),
        "CreateOperator": (
            pb.CreateOperatorRequest(
                name=f"{other.name}-eve", csr_pem=key.csr, lifetime_s=DAY_S, role=pb.OPERATOR_ROLE_VIEWER
            ),
        ),
        "SetOperatorRole": (
            pb.SetOperatorRoleRequest(name=f"{other.name}-eve", role=pb.OPERATOR_ROLE_VIEWER),
            pb.SetOperatorRoleRequest(name=f"{other.name}-eve"),
        ),
        "WhoAmI": (pb.WhoAmIRequest(),),
        "ListOperators": (pb.ListOperatorsRequest(),),
        "RevokeOperator": (pb.RevokeOperatorRequest(name=f"{other.name}-eve"),),
        "GetServerInfo": (pb.GetServerInfoRequest(),),
        "ListLogLines": (pb.ListLogLinesRequest(),),
        "ListAudit": (pb.ListAuditRequest(), pb.ListAuditRequest(subject=run), pb.ListAuditRequest(verify=True)),
        "CreateProject": (pb.CreateProjectRequest(project="third"),),
        "ListProjects": (pb.ListProjectsRequest(), pb.ListProjectsRequest(project=other.name)),
        "SetProjectQuota": (pb.SetProjectQuotaRequest(project=other.name),),
        "CloseProject": (pb.CloseProjectRequest(project=other.name),),
        "PruneStorage": (pb.PruneStorageRequest(),),
        "ListPopulations": (
            pb.ListPopulationsRequest(),
            pb.ListPopulationsRequest(population=f"{other.name}/patients"),
        ),
        "ListCharges": (
            pb.ListChargesRequest(run=run),
            pb.ListChargesRequest(population=f"{other.name}/patients"),
            pb.ListChargesRequest(population=f"{other.name}/patients", run=run, newest=True),
        ),
        "GetParticipantPrivacy": (pb.GetParticipantPrivacyRequest(participant=participant),),
        "LimitPopulation": (
            pb.LimitPopulationRequest(population=f"{other.name}/patients"),
            pb.LimitPopulationRequest(population=f"{other.name}/new", adjacency="add_remove"),
        ),
    }


async def answer_of(caller: Caller, method: str, request: Any, metadata: Any = None) -> str:
    """The text of all answers to a call, or its error with the detail."""
    call = getattr(caller.control, method)(request, timeout=WAIT_S, metadata=metadata)
    if method == "WatchRun":
        call = call.read()
    try:
        return str(await call)
    except grpc.aio.AioRpcError as error:
        found = await refusal(failed(error))
        assert found.detail is not None
        return f"{found.status.name} {found.detail.code} {found.detail.message} {found.detail.remedy}"


async def failed(error: grpc.aio.AioRpcError) -> None:
    raise error


def words_of(other: Tenant) -> tuple[str, ...]:
    """Words that only the other project has, except names that the caller itself has sent."""
    return (other.run, other.participant.name, other.blob, f"{other.name}-boss", f"{other.name}/patients")


async def test_an_operator_gets_nothing_of_another_project(tenants: tuple[World, Tenant, Tenant]) -> None:
    """Every method, with every name of the other project, by the most powerful operator; add new methods here."""
    world, cardio, onco = tenants
    async with onco.participant.check_in():
        asked = about(onco)
        assert asked.keys() == OPERATIONS.keys(), "each method needs the requests that try another project's"
        for method, requests in sorted(asked.items(), key=lambda one: one[0] != "ListAudit"):  # not what is tried
            for request in requests:
                for metadata in (None, within("cardio"), within("onco")):
                    said = await answer_of(cardio.administrator, method, request, metadata)
                    given = str(request)
                    leaked = [word for word in words_of(onco) if word in said and word not in given]
                    assert not leaked, f"{method}: {said}"
                    if OPERATIONS[method].concern in (Concern.RUN, Concern.PARTICIPANT, Concern.CHARGES):
                        assert said.startswith(MISSING), f"{method}: {said}"
    found = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=onco.run), timeout=WAIT_S)
    assert found.summary.status == control_pb2.RUN_STATUS_RUNNING, "and nothing was done to it"
    standing = await world.operator.control.ListParticipants(control_pb2.ListParticipantsRequest(), timeout=WAIT_S)
    assert not any(one.HasField("revoked_at") for one in standing.participants)
    (population,) = (
        await world.operator.control.ListPopulations(
            control_pb2.ListPopulationsRequest(population="onco/patients"), timeout=WAIT_S
        )
    ).populations
    assert population.limit_epsilon == 2.0


async def test_what_is_not_there_and_what_is_anothers_look_the_same(tenants: tuple[World, Tenant, Tenant]) -> None:
    _, cardio, onco = tenants
    nothing = Tenant("onco", onco.administrator, onco.viewer, onco.participant, "raaaaaaaaaaaa", "", "")
    for caller in (cardio.administrator, cardio.viewer):
        for method in (name for name, one in OPERATIONS.items() if one.concern is Concern.RUN):
            (foreign,), (missing,) = about(onco)[method], about(nothing)[method]
            said = await answer_of(caller, method, foreign)
            assert said.replace(onco.run, nothing.run) == await answer_of(caller, method, missing), method


async def test_for_one_organisation_too_another_projects_run_is_not_there(
    tenants: tuple[World, Tenant, Tenant],
) -> None:
    _, cardio, onco = tenants
    nothing = Tenant("onco", onco.administrator, onco.viewer, onco.participant, "raaaaaaaaaaaa", "", "")
    carol = await with_role(tenants[0], "carol", OPERATOR, "cardio", by=cardio.administrator, organisation="north")
    for method in (name for name, one in OPERATIONS.items() if one.concern is Concern.RUN):
        said = await answer_of(carol, method, about(onco)[method][0])
        assert said == await answer_of(carol, method, about(nothing)[method][0]), method


async def test_in_a_closed_project_too_another_projects_run_is_not_there(
    tenants: tuple[World, Tenant, Tenant],
) -> None:
    world, cardio, onco = tenants
    await cardio.administrator.control.CancelRun(control_pb2.CancelRunRequest(run=cardio.run), timeout=WAIT_S)
    await world.operator.control.CloseProject(control_pb2.CloseProjectRequest(project="cardio"), timeout=WAIT_S)
    for run in (onco.run, "raaaaaaaaaaaa"):
        extend = control_pb2.ExtendRunRequest(run=run, rounds=1)
        code = await refused_code(cardio.administrator.control.ExtendRun(extend, timeout=WAIT_S))
        assert code == (MISSING, "run.missing"), run


async def test_lists_and_figures_are_of_one_project(tenants: tuple[World, Tenant, Tenant]) -> None:
    world, cardio, onco = tenants
    async with onco.participant.check_in():
        for who, own in ((cardio.viewer, cardio), (onco.viewer, onco)):
            control = who.control
            listed = await control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
            assert [(one.run, one.project) for one in listed.runs] == [(own.run, own.name)]
            there = await control.ListParticipants(control_pb2.ListParticipantsRequest(), timeout=WAIT_S)
            assert [(one.participant, one.project) for one in there.participants] == [(own.participant.name, own.name)]
            tokens = await control.ListTokens(control_pb2.ListTokensRequest(), timeout=WAIT_S)
            assert {one.project for one in tokens.tokens} == {own.name}
            people = await control.ListOperators(control_pb2.ListOperatorsRequest(), timeout=WAIT_S)
            assert {one.name for one in people.operators} == {f"{own.name}-boss", f"{own.name}-eve"}
            info = await control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=WAIT_S)
            assert info.connected == (own is onco)
            lines = await control.ListLogLines(control_pb2.ListLogLinesRequest(), timeout=WAIT_S)
            assert {one.run for one in lines.lines if one.run} == {own.run}
            (mine,) = (await control.ListProjects(control_pb2.ListProjectsRequest(), timeout=WAIT_S)).projects
            assert (mine.project, mine.runs, mine.participants) == (own.name, 1, 1)
            assert mine.model_bytes > LAYOUT.size_bytes
    every = await world.operator.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
    assert {one.project for one in every.runs} == {"cardio", "onco"}
    asked = world.operator.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S, metadata=within("onco"))
    assert [one.run for one in (await asked).runs] == [onco.run]


async def test_a_model_is_its_projects_even_by_its_name(tenants: tuple[World, Tenant, Tenant]) -> None:
    _, cardio, onco = tenants
    manifest = transfer_pb2.GetManifestRequest(blob=onco.blob)
    missing = await refused_code(cardio.administrator.transfer.GetManifest(manifest, timeout=WAIT_S))
    absent = transfer_pb2.GetManifestRequest(blob="0" * 64)
    assert missing == await refused_code(cardio.administrator.transfer.GetManifest(absent, timeout=WAIT_S))
    assert (await onco.administrator.transfer.GetManifest(manifest, timeout=WAIT_S)).manifest.size_bytes
    assert (await refused_code(submit(cardio.administrator, blob=onco.blob)))[0] == MISSING


async def test_a_model_belongs_to_a_project_only_once_it_was_fully_uploaded_there(
    tenants: tuple[World, Tenant, Tenant],
) -> None:
    """Otherwise the digests of another project's model, which alone open nothing, would give access to the model."""
    _, cardio, onco = tenants
    raw = (initial_values() + 2.0).tobytes()
    manifest = BlobManifest.of_buffer(raw, 1024)
    assert manifest.name == onco.blob
    first = next(iter(model_requests(raw, manifest)))
    first.payload = b"x" * len(first.payload)
    await refusal(cardio.administrator.control.UploadModel(each([first]), timeout=WAIT_S))
    assert (await refused_code(submit(cardio.administrator, blob=onco.blob)))[0] == MISSING
    assert await upload(cardio.administrator, initial_values() + 2.0) == onco.blob
    assert await submit(cardio.administrator, blob=onco.blob)


async def test_runs_draw_their_projects_participants_alone(tenants: tuple[World, Tenant, Tenant]) -> None:
    world, cardio, onco = tenants
    async with onco.participant.check_in() as there, cardio.participant.check_in() as here:
        at = (await there.next("participate")).key
        assert at.run == onco.run
        assert (await here.next("participate")).key.run == cardio.run
        run = await submit(cardio.administrator, job(size=2))
        states = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=run, members=True), timeout=WAIT_S)
        assert not any(one.members for one in states.rounds), "it waits: its project has one participant"
        assert states.connected == 1


async def test_required_names_are_of_the_project(tenants: tuple[World, Tenant, Tenant]) -> None:
    world, cardio, onco = tenants
    await enrolled(world, onco.administrator, "north")
    toml = job().replace(b"[cohort]", b'[cohort]\nrequired = ["north"]')
    found = await refusal(submit(cardio.administrator, toml))
    assert found.detail is not None
    assert found.detail.code == "job.required"
    assert "north" not in found.detail.remedy
    assert await submit(onco.administrator, toml)


async def test_populations_of_the_same_name_are_apart(tenants: tuple[World, Tenant, Tenant]) -> None:
    world, cardio, onco = tenants
    everything = await world.operator.control.ListPopulations(control_pb2.ListPopulationsRequest(), timeout=WAIT_S)
    assert [one.population for one in everything.populations] == ["cardio/patients", "onco/patients"]
    limit = control_pb2.LimitPopulationRequest(population="patients", epsilon=9.0, delta=1e-6)
    await cardio.administrator.control.LimitPopulation(limit, timeout=WAIT_S)
    for own, epsilon in ((cardio, 9.0), (onco, 2.0)):
        asked = control_pb2.ListPopulationsRequest(population="patients")
        (found,) = (await own.viewer.control.ListPopulations(asked, timeout=WAIT_S)).populations
        assert (found.population, found.limit_epsilon) == (f"{own.name}/patients", epsilon)
    private = await submit(onco.administrator, job(rounds=2) + PRIVATE.encode())
    charged = control_pb2.ListChargesRequest(run=private)
    assert (await onco.viewer.control.ListCharges(charged, timeout=WAIT_S)).population == "onco/patients"
    assert (await refused_code(cardio.viewer.control.ListCharges(charged, timeout=WAIT_S)))[0] == MISSING


async def test_a_population_is_limited_in_a_project_that_exists(tenants: tuple[World, Tenant, Tenant]) -> None:
    """A limit on a population of a misspelt project would limit no run."""
    world, _, _ = tenants

    async def limited(name: str) -> str:
        request = control_pb2.LimitPopulationRequest(population=name, epsilon=3.0, delta=1e-6, adjacency="add_remove")
        return (await world.operator.control.LimitPopulation(request, timeout=WAIT_S)).population.population

    for name in ("cardo/patients", "/patients"):
        assert await refused_code(limited(name)) == (MISSING, "project.missing"), name
    assert await limited("cardio/patients") == "cardio/patients"
    assert await limited("default/patients") == "patients", "the population that runs of default charge"


class TestAdministrators:
    async def test_a_projects_administrator_manages_its_operators_and_no_others(
        self, tenants: tuple[World, Tenant, Tenant]
    ) -> None:
        world, cardio, _ = tenants
        boss = cardio.administrator.control
        officer = control_pb2.SetOperatorRoleRequest(name="cardio-eve", role=control_pb2.OPERATOR_ROLE_PRIVACY_OFFICER)
        changed = (await boss.SetOperatorRole(officer, timeout=WAIT_S)).operator
        assert [(one.project, one.role) for one in changed.projects] == [("cardio", ROLE_NUMBERS[OFFICER])]
        audit = await cardio.viewer.control.ListAudit(control_pb2.ListAuditRequest(), timeout=WAIT_S)
        assert {one.project for one in audit.entries} == {"cardio"}
        others = control_pb2.SetOperatorRoleRequest(name="onco-eve", role=control_pb2.OPERATOR_ROLE_VIEWER)
        assert await refused_code(boss.SetOperatorRole(others, timeout=WAIT_S)) == (MISSING, "operator.missing")
        revoke = control_pb2.RevokeOperatorRequest(name="cardio-eve")
        assert (await boss.RevokeOperator(revoke, timeout=WAIT_S)).operator.HasField("revoked_at")
        assert (await refused_code(with_role(world, "onco-eve", VIEWER, "cardio", by=cardio.administrator)))[1] == (
            "operator.exists"
        )

    async def test_it_cannot_give_itself_more(self, tenants: tuple[World, Tenant, Tenant]) -> None:
        world, cardio, _ = tenants
        boss = cardio.administrator
        request = control_pb2.SetOperatorRoleRequest(name="cardio-boss", role=control_pb2.OPERATOR_ROLE_ADMINISTRATOR)
        for project in ("onco", "default", "none"):
            call = boss.control.SetOperatorRole(request, timeout=WAIT_S, metadata=within(project))
            assert await refused_code(call) == (MISSING, "project.missing"), project
        for method, asked in (
            ("CreateProject", control_pb2.CreateProjectRequest(project="third")),
            ("SetProjectQuota", control_pb2.SetProjectQuotaRequest(project="cardio")),
            ("CloseProject", control_pb2.CloseProjectRequest(project="cardio")),
            ("PruneStorage", control_pb2.PruneStorageRequest()),
        ):
            call = getattr(boss.control, method)(asked, timeout=WAIT_S)
            assert await refused_code(call) == ("PERMISSION_DENIED", "operator.role"), method
        found = await boss.control.WhoAmI(control_pb2.WhoAmIRequest(), timeout=WAIT_S)
        assert (found.project, found.role) == ("cardio", control_pb2.OPERATOR_ROLE_ADMINISTRATOR)
        del world

    async def test_an_expired_name_with_roles_elsewhere_is_not_taken_over(
        self, tenants: tuple[World, Tenant, Tenant]
    ) -> None:
        """Otherwise the name's roles elsewhere would come with it."""
        world, cardio, _ = tenants
        await world.operator.control.RevokeOperator(control_pb2.RevokeOperatorRequest(name="onco-boss"), timeout=WAIT_S)
        taken = await refused_code(with_role(world, "onco-boss", VIEWER, "cardio", by=cardio.administrator))
        assert taken == ("FAILED_PRECONDITION", "operator.exists")


async def test_roles_in_several_projects(tenants: tuple[World, Tenant, Tenant]) -> None:
    world, cardio, onco = tenants
    dora = await with_role(world, "dora", OPERATOR, "cardio")
    request = control_pb2.SetOperatorRoleRequest(name="dora", role=control_pb2.OPERATOR_ROLE_VIEWER)
    await world.operator.control.SetOperatorRole(request, timeout=WAIT_S, metadata=within("onco"))
    which = await refused_code(dora.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S))
    assert which == ("INVALID_ARGUMENT", "project.which")
    in_onco = dora.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S, metadata=within("onco"))
    assert [one.run for one in (await in_onco).runs] == [onco.run]
    await dora.control.PauseRun(control_pb2.PauseRunRequest(run=cardio.run), timeout=WAIT_S)
    pause = dora.control.PauseRun(control_pb2.PauseRunRequest(run=onco.run), timeout=WAIT_S)
    assert await refused_code(pause) == ("PERMISSION_DENIED", "operator.role")
    found = await dora.control.ListProjects(control_pb2.ListProjectsRequest(), timeout=WAIT_S)
    assert [one.project for one in found.projects] == ["cardio", "onco"]
    none = control_pb2.SetOperatorRoleRequest(name="dora")
    await world.operator.control.SetOperatorRole(none, timeout=WAIT_S, metadata=within("onco"))
    listed = await dora.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
    assert [one.run for one in listed.runs] == [cardio.run]


async def test_who_loses_the_role_in_a_project_watches_its_runs_no_longer(
    tenants: tuple[World, Tenant, Tenant],
) -> None:
    world, cardio, _ = tenants
    dora = await with_role(world, "dora", VIEWER, "cardio")
    viewer = control_pb2.SetOperatorRoleRequest(name="dora", role=control_pb2.OPERATOR_ROLE_VIEWER)
    await world.operator.control.SetOperatorRole(viewer, timeout=WAIT_S, metadata=within("onco"))
    watch = dora.control.WatchRun(control_pb2.WatchRunRequest(run=cardio.run), timeout=WAIT_S)
    first = await watch.read()
    assert isinstance(first, control_pb2.WatchRunResponse)
    assert first.summary.run == cardio.run
    none = control_pb2.SetOperatorRoleRequest(name="dora")
    await world.operator.control.SetOperatorRole(none, timeout=WAIT_S, metadata=within("cardio"))

    async def rest() -> None:
        while await watch.read() is not grpc.aio.EOF:
            pass

    assert await refused_code(rest()) == (MISSING, "run.missing")


class TestALesserRoleInOneProject:
    """There it replaces the role in all projects, whether or not a call names the project."""

    async def test_in_default_nothing_is_made(self, tenants: tuple[World, Tenant, Tenant]) -> None:
        world, _, _ = tenants
        frank = await self._frank(world, "default")
        assert await refused_code(token(frank)) == ("PERMISSION_DENIED", "operator.role")
        assert await refused_code(upload(frank)) == ("PERMISSION_DENIED", "operator.role")
        assert await token(frank, metadata=within("cardio"))

    async def test_its_join_tokens_stay(self, tenants: tuple[World, Tenant, Tenant]) -> None:
        world, cardio, onco = tenants
        frank = await self._frank(world, "cardio")

        def void(of: Tenant, metadata: Any = None) -> Awaitable[control_pb2.VoidTokensResponse]:
            request = control_pb2.VoidTokensRequest(token_ids=[JoinToken.decode(of.token).token_id])
            return frank.control.VoidTokens(request, timeout=WAIT_S, metadata=metadata)

        found = await refusal(void(cardio))
        assert found.detail is not None
        assert (found.detail.code, "cardio" in found.detail.message) == ("project.which", True)
        assert await refused_code(void(cardio, within("cardio"))) == ("PERMISSION_DENIED", "operator.role")
        assert (await void(onco, within("onco"))).voided == 1

    async def _frank(self, world: World, project: str) -> Caller:
        """Create an operator in all projects who is a viewer in this one."""
        key = Key()
        made = await world.operator.control.CreateOperator(
            control_pb2.CreateOperatorRequest(
                name="frank", csr_pem=key.csr, lifetime_s=DAY_S, role=control_pb2.OPERATOR_ROLE_OPERATOR
            ),
            timeout=WAIT_S,
        )
        less = control_pb2.SetOperatorRoleRequest(name="frank", role=control_pb2.OPERATOR_ROLE_VIEWER)
        await world.operator.control.SetOperatorRole(less, timeout=WAIT_S, metadata=within(project))
        return Caller(await world.channel(key.pem, made.certificate_pem))


async def test_a_role_for_one_organisation_needs_a_project(tenants: tuple[World, Tenant, Tenant]) -> None:
    """Without one it was granted in all projects and for every organisation."""
    world, _, _ = tenants
    limited = ("INVALID_ARGUMENT", "operator.role_limit")
    create = control_pb2.CreateOperatorRequest(
        name="carol",
        csr_pem=Key().csr,
        lifetime_s=DAY_S,
        role=control_pb2.OPERATOR_ROLE_OPERATOR,
        organisation="north",
    )
    assert await refused_code(world.operator.control.CreateOperator(create, timeout=WAIT_S)) == limited
    change = control_pb2.SetOperatorRoleRequest(
        name="cardio-eve", role=control_pb2.OPERATOR_ROLE_OPERATOR, organisation="north"
    )
    assert await refused_code(world.operator.control.SetOperatorRole(change, timeout=WAIT_S)) == limited


async def test_a_role_for_one_organisation(tenants: tuple[World, Tenant, Tenant]) -> None:
    world, cardio, _ = tenants
    north = await enrolled(world, cardio.administrator, "north")
    dora = await with_role(world, "dora", OPERATOR, "cardio", by=cardio.administrator, organisation="north")
    there = await dora.control.ListParticipants(control_pb2.ListParticipantsRequest(), timeout=WAIT_S)
    assert [one.participant for one in there.participants] == [north.name]
    (made,) = await token(dora, organisation="north")
    assert made
    listed = await dora.control.ListTokens(control_pb2.ListTokensRequest(), timeout=WAIT_S)
    assert {one.organisation for one in listed.tokens} == {"north"}
    limited = ("PERMISSION_DENIED", "operator.organisation")
    assert await refused_code(token(dora)) == limited
    assert await refused_code(dora.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)) == limited
    others = control_pb2.RevokeParticipantRequest(participant=cardio.participant.name)
    assert await refused_code(dora.control.RevokeParticipant(others, timeout=WAIT_S)) == (
        MISSING,
        "participant.missing",
    )
    await dora.control.RevokeParticipant(control_pb2.RevokeParticipantRequest(participant=north.name), timeout=WAIT_S)
    allowed = {name for name, one in OPERATIONS.items() if one.for_organisation}
    for method, requests in about(cardio).items():
        for request in () if method in allowed or OPERATIONS[method].concern is Concern.SERVER else requests:
            assert "operator.organisation" in await answer_of(dora, method, request), method


class TestQuotas:
    async def test_runs_participants_and_bytes(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data") as world:
            await new_project(world, "small", runs=1, participants=2)
            boss = await with_role(world, "boss", ADMINISTRATOR, "small")
            run = await submit(boss)
            assert (await refused_code(submit(boss)))[1] == "project.runs"
            await boss.control.CancelRun(control_pb2.CancelRunRequest(run=run), timeout=WAIT_S)
            other = await submit(boss)
            extend = boss.control.ExtendRun(control_pb2.ExtendRunRequest(run=run, rounds=1), timeout=WAIT_S)
            assert (await refused_code(extend))[1] == "project.runs"
            await enrolled(world, boss)
            assert (await refused_code(token(boss, count=2)))[1] == "project.participants"
            (held,) = await token(boss)
            assert (await refused_code(token(boss)))[1] == "project.participants"
            quota = control_pb2.ProjectQuota(runs=5, participants=1, model_bytes=LAYOUT.size_bytes * 8)
            changed = control_pb2.SetProjectQuotaRequest(project="small", quota=quota)
            await world.operator.control.SetProjectQuota(changed, timeout=WAIT_S)
            late = world.enrol_with(JoinToken.decode(held), Key())
            assert (await refused_code(late))[1] == "project.participants"
            full = await refusal(submit(boss))
            assert full.detail is not None
            assert full.detail.code == "project.model_bytes"
            assert "--stored-gb" in full.detail.remedy
            await boss.control.CancelRun(control_pb2.CancelRunRequest(run=other), timeout=WAIT_S)
            assert await submit(boss)
            await submit(world.operator)

    async def test_a_closed_project(self, tenants: tuple[World, Tenant, Tenant]) -> None:
        world, cardio, _ = tenants
        close = control_pb2.CloseProjectRequest(project="cardio")
        busy = await refused_code(world.operator.control.CloseProject(close, timeout=WAIT_S))
        assert busy == ("FAILED_PRECONDITION", "project.busy")
        await cardio.administrator.control.CancelRun(control_pb2.CancelRunRequest(run=cardio.run), timeout=WAIT_S)
        closed = await world.operator.control.CloseProject(close, timeout=WAIT_S)
        assert closed.voided_tokens == 1
        assert closed.project.HasField("closed_at")
        shut = ("FAILED_PRECONDITION", "project.closed")
        begins: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: token(cardio.administrator),
            lambda: upload(cardio.administrator),
            lambda: cardio.administrator.control.ExtendRun(
                control_pb2.ExtendRunRequest(run=cardio.run, rounds=1), timeout=WAIT_S
            ),
        )
        for begin in begins:
            assert await refused_code(begin()) == shut
        listed = await cardio.viewer.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
        assert [one.run for one in listed.runs] == [cardio.run], "what is there can be read"
        default = control_pb2.CloseProjectRequest(project="default")
        kept = await refused_code(world.operator.control.CloseProject(default, timeout=WAIT_S))
        assert kept == ("FAILED_PRECONDITION", "project.default")
        again = await refused_code(new_project(world, "cardio"))
        assert again == ("FAILED_PRECONDITION", "project.exists")


async def test_the_audit_log_names_the_project_once_there_are_several(tmp_path: Path) -> None:
    async with World(tmp_path / "data") as world:
        await token(world.operator)
        await new_project(world, "cardio", runs=3)
        await token(world.operator)
        await token(world.operator, metadata=within("cardio"))
        request = control_pb2.ListAuditRequest(verify=True)
        found = await world.operator.control.ListAudit(request, timeout=WAIT_S)
        told = [(one.action, one.project, one.detail) for one in reversed(found.entries)]
        assert told == [
            ("token.create", "", "1 for 600 s"),
            ("project.create", "", "runs 3"),
            ("token.create", "default", "1 for 600 s"),
            ("token.create", "cardio", "1 for 600 s"),
        ]
        assert found.chain.flaw == ""


async def test_projects_outlive_the_server(tmp_path: Path) -> None:
    async with World(tmp_path / "data") as first:
        await new_project(first, "cardio")
        run = await submit(await with_role(first, "boss", ADMINISTRATOR, "cardio"))
    async with World(tmp_path / "data") as again:
        asked = again.operator.control.ListRuns(
            control_pb2.ListRunsRequest(), timeout=WAIT_S, metadata=within("cardio")
        )
        assert [one.run for one in (await asked).runs] == [run]
