"""Roles of operators on a real server: the table, a viewer who tries everything, changes, the last administrator."""

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from google.protobuf.descriptor import MethodDescriptor
from sqlalchemy import Connection, text

from atoll.server.identity import OperatorRole
from atoll.server.rpc.operations import OPERATIONS, ROLE_NUMBERS
from atoll.server.stores import Grant, Store, certificates, operators
from atoll.wire.v1 import control_pb2, transfer_pb2
from tests.patience import WAIT_S
from tests.server.rpc.test_authentication import call
from tests.server.rpc.test_operators import DAY_S, local, revoke
from tests.server.rpc.world import Caller, Key, World, job, refused_code, refused_detail

VIEWER, OPERATOR, OFFICER, ADMINISTRATOR = OperatorRole
REFUSED = ("PERMISSION_DENIED", "operator.role")
METHODS: Iterable[MethodDescriptor] = control_pb2.DESCRIPTOR.services_by_name["ControlService"].methods
ALLOWED = {
    VIEWER: {
        *("ListRuns", "GetRun", "WatchRun", "ListTokens", "ListParticipants", "ListOperators", "GetServerInfo"),
        *("ListPopulations", "ListCharges", "GetParticipantPrivacy", "WhoAmI", "CreateOperator", "ListLogLines"),
        "ListProjects",
    }
}
ALLOWED[OPERATOR] = ALLOWED[VIEWER] | {
    *("UploadModel", "SubmitRun", "PauseRun", "ResumeRun", "CancelRun", "ExtendRun", "DeleteRun", "GetRunModel"),
    *("CreateToken", "VoidTokens", "RevokeParticipant", "PruneStorage"),
}
ALLOWED[OFFICER] = ALLOWED[VIEWER] | {"PauseRun", "CancelRun", "LimitPopulation", "ListAudit"}
ALLOWED[ADMINISTRATOR] = set(OPERATIONS)
"""Written out once more, so that a slip in the table is seen."""


async def with_role(world: World, name: str, role: OperatorRole, by: Caller | None = None) -> Caller:
    key = Key()
    request = control_pb2.CreateOperatorRequest(name=name, csr_pem=key.csr, lifetime_s=DAY_S, role=ROLE_NUMBERS[role])
    answer = await (by or world.operator).control.CreateOperator(request, timeout=WAIT_S)
    return Caller(await world.channel(key.pem, answer.certificate_pem))


async def set_role(by: Caller, name: str, role: OperatorRole) -> control_pb2.OperatorSummary:
    request = control_pb2.SetOperatorRoleRequest(name=name, role=ROLE_NUMBERS[role])
    return (await by.control.SetOperatorRole(request, timeout=WAIT_S)).operator


async def role_of(caller: Caller) -> str:
    found = await caller.control.WhoAmI(control_pb2.WhoAmIRequest(), timeout=WAIT_S)
    return OperatorRole(control_pb2.OperatorRole.Name(found.role).removeprefix("OPERATOR_ROLE_").lower()).value


@pytest.mark.parametrize("role", OperatorRole)
async def test_each_role_tries_everything(world: World, role: OperatorRole) -> None:
    dora = await with_role(world, "dora", role)
    for method in METHODS:
        found = await call(dora.channel, method)
        refused = found is not None and found.detail is not None and found.detail.code == "operator.role"
        may = method.name in ALLOWED[role]
        if method.name == "CreateOperator":  # an empty name is refused before anything else is looked at
            continue
        assert refused == (not may), method.name
    asked = control_pb2.ListAuditRequest(operator="dora", outcome="refused")
    seen = {(one.action, one.subject) for one in (await world.operator.control.ListAudit(asked)).entries}
    for name in set(OPERATIONS) - ALLOWED[role]:
        action = OPERATIONS[name].action
        assert any(one == action if action else (one, about) == ("read", name) for one, about in seen), name


async def test_a_refusal_names_role_and_who_can_grant_it(world: World) -> None:
    dora = await with_role(world, "dora", VIEWER)
    detail = await refused_detail(dora.control.PauseRun(control_pb2.PauseRunRequest(run="r1"), timeout=WAIT_S))
    assert detail.message == (
        "this needs the role operator or privacy officer or administrator; dora has the role viewer"
    )
    assert detail.remedy == "ask an administrator (admin) for it: atoll operator role dora operator"


async def test_a_viewer_gets_no_model_even_by_its_name(world: World) -> None:
    dora, run = await with_role(world, "dora", VIEWER), await world.submit(job())
    request = control_pb2.GetRunModelRequest(run=run, round=0)
    blob = (await world.operator.control.GetRunModel(request, timeout=WAIT_S)).model.blob
    assert await refused_code(dora.control.GetRunModel(request, timeout=WAIT_S)) == REFUSED
    manifest = transfer_pb2.GetManifestRequest(blob=blob)
    assert await refused_code(dora.transfer.GetManifest(manifest, timeout=WAIT_S)) == REFUSED
    download = dora.transfer.Download(transfer_pb2.DownloadRequest(blob=blob), timeout=WAIT_S)
    assert await refused_code(download.read()) == REFUSED
    asked = control_pb2.ListAuditRequest(operator="dora", action="model.download")
    found = (await world.operator.control.ListAudit(asked, timeout=WAIT_S)).entries
    assert {(one.subject, one.outcome, one.code) for one in found} == {(blob, "refused", "operator.role")}


@pytest.mark.parametrize("role", [VIEWER, OPERATOR, OFFICER])
async def test_no_operator_raises_its_own_role(world: World, role: OperatorRole) -> None:
    dora = await with_role(world, "dora", role)
    assert await refused_code(set_role(dora, "dora", ADMINISTRATOR)) == REFUSED
    assert await refused_code(with_role(world, "dora", ADMINISTRATOR, by=dora)) == REFUSED
    assert await refused_code(with_role(world, "eve", VIEWER, by=dora)) == REFUSED
    assert await refused_code(revoke(dora, "admin")) == REFUSED
    assert await role_of(dora) == role
    asked = control_pb2.ListOperatorsRequest()
    found = (await world.operator.control.ListOperators(asked, timeout=WAIT_S)).operators
    assert {one.name: one.certificates for one in found} == {"admin": 1, "dora": 1}


async def test_renewal_keeps_the_role(world: World) -> None:
    dora, key = await with_role(world, "dora", OFFICER), Key()
    request = control_pb2.CreateOperatorRequest(name="dora", csr_pem=key.csr, lifetime_s=DAY_S)
    answer = await dora.control.CreateOperator(request, timeout=WAIT_S)
    assert await role_of(Caller(await world.channel(key.pem, answer.certificate_pem))) == OFFICER


async def test_a_new_operator_is_an_operator(world: World) -> None:
    key = Key()
    request = control_pb2.CreateOperatorRequest(name="dora", csr_pem=key.csr, lifetime_s=DAY_S)
    answer = await world.operator.control.CreateOperator(request, timeout=WAIT_S)
    assert await role_of(Caller(await world.channel(key.pem, answer.certificate_pem))) == OPERATOR
    assert await role_of(world.operator) == ADMINISTRATOR


async def test_a_new_role_holds_from_the_next_call_on_and_is_recorded(world: World) -> None:
    dora = await with_role(world, "dora", OPERATOR)
    await dora.control.PruneStorage(control_pb2.PruneStorageRequest(dry_run=True), timeout=WAIT_S)
    assert (await set_role(world.operator, "dora", VIEWER)).role == control_pb2.OPERATOR_ROLE_VIEWER
    asked = control_pb2.PruneStorageRequest(dry_run=True)
    assert await refused_code(dora.control.PruneStorage(asked, timeout=WAIT_S)) == REFUSED
    await set_role(world.operator, "dora", ADMINISTRATOR)
    await dora.control.PruneStorage(asked, timeout=WAIT_S)
    request = control_pb2.ListAuditRequest(action="operator.role")
    found = (await dora.control.ListAudit(request, timeout=WAIT_S)).entries
    assert [(one.operator, one.subject, one.detail) for one in found] == [
        ("admin", "dora", "administrator"),
        ("admin", "dora", "viewer"),
    ]


async def test_a_change_whose_call_is_broken_off_holds_too(world: World) -> None:
    dora, go_on = await with_role(world, "dora", ADMINISTRATOR), threading.Event()
    assert await role_of(dora) == ADMINISTRATOR
    coordinator, begun = world.daemon._coordinator, threading.Event()
    assert coordinator is not None

    def hold(connection: Connection, grant: Grant) -> None:
        put(connection, grant)
        begun.set()
        go_on.wait(WAIT_S)

    put = operators.put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "put", hold)
        changing = asyncio.ensure_future(set_role(world.operator, "dora", VIEWER))
        await asyncio.to_thread(begun.wait, WAIT_S)
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        await role_of(world.operator)
        go_on.set()
    await coordinator._services.writer.run(lambda _: None)  # after it in the queue
    assert await role_of(dora) == VIEWER


async def test_an_administrator_always_remains(world: World) -> None:
    """The server's own operator is one, and gets a new certificate after each revocation."""
    own = ("FAILED_PRECONDITION", "operator.own")
    assert await refused_code(set_role(world.operator, "admin", VIEWER)) == own
    dora = await with_role(world, "dora", ADMINISTRATOR)
    assert await refused_code(set_role(dora, "admin", OPERATOR)) == own
    await revoke(dora, "admin")
    await revoke(await local(world), "dora")
    assert await role_of(await local(world)) == ADMINISTRATOR


async def test_the_last_administrator_in_force_is_not_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dora = await with_role(world, "dora", ADMINISTRATOR)

    async def fail(*_: object) -> None:
        """The server cannot write the file of its own operator."""

    monkeypatch.setattr("atoll.server.access.operators.Operators._replace_file", fail)
    await revoke(dora, "admin")
    last = ("FAILED_PRECONDITION", "operator.last")
    assert await refused_code(revoke(dora, "dora")) == last
    assert await refused_code(set_role(dora, "dora", OPERATOR)) == last
    assert await role_of(dora) == ADMINISTRATOR


async def test_what_is_no_role_is_refused(world: World) -> None:
    unknown = control_pb2.SetOperatorRoleRequest(name="admin")
    found = await refused_code(world.operator.control.SetOperatorRole(unknown, timeout=WAIT_S))
    assert found == ("INVALID_ARGUMENT", "operator.role_name")
    missing = await refused_code(set_role(world.operator, "nobody", VIEWER))
    assert missing == ("NOT_FOUND", "operator.missing")


async def test_operators_of_before_are_administrators(tmp_path: Path) -> None:
    async with World(tmp_path / "data") as first:
        await with_role(first, "dora", VIEWER)
    store = Store.open(tmp_path / "data")
    for statement in (
        *(f"DROP TABLE {table}" for table in ("operators", "projects", "project_roles")),
        *(f"DROP INDEX ix_{name}" for name in ("participants_project_id", "runs_project_created_at", "audit_project")),
        *(f"ALTER TABLE {table} DROP COLUMN project" for table in ("tokens", "participants", "runs", "audit")),
    ):
        store.writer.submit(Connection.execute, text(statement)).result()
    store.writer.submit(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '0007'"))).result()
    store.close()
    upgraded = Store.open(tmp_path / "data")
    found = dict(upgraded.reader.submit(operators.roles).result())
    rows = upgraded.reader.submit(certificates.of_operators).result()
    upgraded.close()
    assert found == {"admin": ADMINISTRATOR, "dora": ADMINISTRATOR}
    assert {row.subject for row in rows} == set(found)
    async with World(tmp_path / "data") as again:
        assert await role_of(again.operator) == ADMINISTRATOR
