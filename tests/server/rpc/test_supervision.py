"""A real server's audit log has operators' actions, including refused and interrupted ones."""

import asyncio

import grpc
import pytest

from atoll.server.access.audit_log import AuditLog
from atoll.server.rpc.control import ControlService
from atoll.server.rpc.operations import OPERATIONS, operation_of
from atoll.server.stores import AuditEntry, StoreUnavailableError
from atoll.wire.v1 import control_pb2, transfer_pb2
from tests.patience import WAIT_S
from tests.server.rpc.test_operators import named, revoke
from tests.server.rpc.world import Participant, World, job, refused_code


async def entries(world: World, **asked: object) -> list[control_pb2.AuditEntry]:
    """The entries, newest last."""
    request = control_pb2.ListAuditRequest(**asked)  # type: ignore[arg-type]  # the test's own keyword arguments
    found = await world.operator.control.ListAudit(request, timeout=WAIT_S)
    return list(reversed(found.entries))


async def audit_rows(world: World, **asked: object) -> list[tuple[str, str, str, str]]:
    return [(one.operator, one.action, one.subject, one.outcome) for one in await entries(world, **asked)]


def test_every_method_of_operators_is_in_the_table() -> None:
    service = control_pb2.DESCRIPTOR.services_by_name["ControlService"]
    assert {method.name for method in service.methods} == set(OPERATIONS)
    assert all(not method.server_streaming or not OPERATIONS[method.name].action for method in service.methods)


def test_a_method_that_the_table_lacks_is_an_error() -> None:
    assert operation_of("/grpc.health.v1.Health/Check") is None
    with pytest.raises(KeyError):
        operation_of("/atoll.wire.v1.ControlService/New")


async def test_what_an_operator_does_with_a_run(world: World) -> None:
    run, control = await world.submit(job()), world.operator.control
    await control.PauseRun(control_pb2.PauseRunRequest(run=run), timeout=WAIT_S)
    await control.ResumeRun(control_pb2.ResumeRunRequest(run=run), timeout=WAIT_S)
    await control.CancelRun(control_pb2.CancelRunRequest(run=run, reason="wrong\ndata"), timeout=WAIT_S)
    await control.ExtendRun(control_pb2.ExtendRunRequest(run=run, rounds=2), timeout=WAIT_S)
    await refused_code(control.DeleteRun(control_pb2.DeleteRunRequest(run=run), timeout=WAIT_S))
    found = await entries(world, subject=run)
    assert [(one.action, one.detail, one.outcome, one.code) for one in found] == [
        ("run.submit", "job.toml", "done", ""),
        ("run.pause", "", "done", ""),
        ("run.resume", "", "done", ""),
        ("run.cancel", r"wrong\ndata", "done", ""),
        ("run.extend", "2 rounds", "done", ""),
        ("run.delete", "", "refused", "run.active"),
    ]
    assert {one.operator for one in found} == {"admin"}
    assert {one.address for one in found} == {"127.0.0.1"}
    assert all(one.credential.startswith("certificate ") for one in found)


async def test_people_and_their_credentials(world: World, alice: Participant) -> None:
    control = world.operator.control
    await named(world, "dora")
    await control.RevokeParticipant(
        control_pb2.RevokeParticipantRequest(participant=alice.name, reason="left"), timeout=WAIT_S
    )
    await revoke(world.operator, "dora")
    await control.LimitPopulation(
        control_pb2.LimitPopulationRequest(population="p", epsilon=1, delta=1e-6, adjacency="add_remove"),
        timeout=WAIT_S,
    )
    await control.ListCharges(control_pb2.ListChargesRequest(population="p"), timeout=WAIT_S)
    await control.PruneStorage(control_pb2.PruneStorageRequest(), timeout=WAIT_S)
    assert await audit_rows(world) == [
        ("admin", "token.create", "acme", "done"),
        ("admin", "operator.create", "dora", "done"),
        ("admin", "participant.revoke", alice.name, "done"),
        ("admin", "operator.revoke", "dora", "done"),
        ("admin", "population.limit", "p", "done"),
        ("admin", "ledger.export", "p", "done"),
        ("admin", "storage.prune", "", "done"),
    ]


async def test_reading_is_not_recorded(world: World) -> None:
    control = world.operator.control
    await control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
    await control.ListPopulations(control_pb2.ListPopulationsRequest(), timeout=WAIT_S)
    await control.ListLogLines(control_pb2.ListLogLinesRequest(), timeout=WAIT_S)
    await control.PruneStorage(control_pb2.PruneStorageRequest(dry_run=True), timeout=WAIT_S)
    assert await audit_rows(world) == []


async def test_a_model_that_is_handed_out_is_recorded_once(world: World) -> None:
    run = await world.submit(job())
    request = control_pb2.GetRunModelRequest(run=run, round=0)
    blob = (await world.operator.control.GetRunModel(request, timeout=WAIT_S)).model.blob
    await world.operator.transfer.GetManifest(transfer_pb2.GetManifestRequest(blob=blob), timeout=WAIT_S)
    assert await audit_rows(world, action="model") == [
        ("admin", "model.upload", blob, "done"),
        ("admin", "model.read", run, "done"),
    ]


async def test_a_download_without_asking_for_the_model_is_recorded_too(world: World) -> None:
    dora, run = await named(world, "dora"), await world.submit(job())
    request = control_pb2.GetRunModelRequest(run=run, round=0)
    blob = (await world.operator.control.GetRunModel(request, timeout=WAIT_S)).model.blob
    for _ in range(2):
        await dora.transfer.GetManifest(transfer_pb2.GetManifestRequest(blob=blob), timeout=WAIT_S)
    assert await audit_rows(world, operator="dora") == [("dora", "model.download", blob, "done")]


async def test_participants_are_not_in_it(world: World, alice: Participant) -> None:
    await refused_code(alice.control.PauseRun(control_pb2.PauseRunRequest(run="r1"), timeout=WAIT_S))
    assert await audit_rows(world, operator=alice.name) == []


async def test_a_call_that_is_broken_off_is_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    began = asyncio.Event()

    async def hang(*_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(world.daemon._coordinator, "pause", hang)
    recorded = asyncio.Event()
    loop, record = asyncio.get_running_loop(), AuditLog.record_later

    def seen(self: AuditLog, entry: AuditEntry) -> None:
        record(self, entry)
        loop.call_soon_threadsafe(recorded.set)

    monkeypatch.setattr(AuditLog, "record_later", seen)
    call = world.operator.control.PauseRun(control_pb2.PauseRunRequest(run="r1"))
    waiting = asyncio.ensure_future(refused_code(call))
    await asyncio.wait_for(began.wait(), WAIT_S)
    call.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(recorded.wait(), WAIT_S)
    await world.operator.control.PruneStorage(
        control_pb2.PruneStorageRequest(), timeout=WAIT_S
    )  # after it in the queue
    assert ("admin", "run.pause", "r1", "interrupted") in await audit_rows(world)


async def test_what_cannot_be_recorded_is_not_acknowledged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise StoreUnavailableError("the disk is away", "try again")

    monkeypatch.setattr(AuditLog, "record", fail)
    call = world.operator.control.PruneStorage(control_pb2.PruneStorageRequest(), timeout=WAIT_S)
    assert (await refused_code(call))[0] == grpc.StatusCode.UNAVAILABLE.name


async def test_a_fault_of_the_server_is_recorded_as_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(world.daemon._coordinator, "pause", fail)
    await refused_code(world.operator.control.PauseRun(control_pb2.PauseRunRequest(run="r1"), timeout=WAIT_S))
    (found,) = await entries(world)
    assert (found.outcome, found.code) == ("failed", "RuntimeError")


async def test_pages_and_the_state_of_the_chain(world: World) -> None:
    for name in ("a", "b", "c"):
        await named(world, name)
    asked = control_pb2.ListAuditRequest(limit=2, verify=True)
    first = await world.operator.control.ListAudit(asked, timeout=WAIT_S)
    assert [one.subject for one in first.entries] == ["c", "b"]
    assert (first.chain.entries, first.chain.head, first.chain.flaw) == (3, first.entries[0].digest, "")
    assert [one.subject for one in await entries(world, limit=2, after=first.next)] == ["a"]


def test_the_service_has_a_handler_for_each() -> None:
    assert all(name in dir(ControlService) for name in OPERATIONS)
