"""Named operators on a real server: created, distinguished in the log, revoked."""

import asyncio
import json
import logging
from types import SimpleNamespace

import pytest

from atoll.server.rpc import authentication
from atoll.server.runs.coordinator import MAX_REASON_CHARS
from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import Caller, Key, Participant, World, job, refused_code

REVOKED = ("UNAUTHENTICATED", "certificate.revoked")
DAY_S = 86_400.0


async def named(world: World, name: str, *, by: Caller | None = None, lifetime_s: float = DAY_S) -> Caller:
    """A new operator, made by another one."""
    key = Key()
    request = control_pb2.CreateOperatorRequest(name=name, csr_pem=key.csr, lifetime_s=lifetime_s)
    answer = await (by or world.operator).control.CreateOperator(request, timeout=WAIT_S)
    return Caller(await world.channel(key.pem, answer.certificate_pem))


async def listed(world: World, by: Caller | None = None) -> dict[str, tuple[int, str]]:
    """The number of valid certificates, or the reason for none, by name."""
    asked = (by or world.operator).control.ListOperators(control_pb2.ListOperatorsRequest(), timeout=WAIT_S)
    return {one.name: (one.certificates, one.revoked_reason) for one in (await asked).operators}


async def revoke(by: Caller, name: str, reason: str = "left") -> control_pb2.RevokeOperatorResponse:
    return await by.control.RevokeOperator(control_pb2.RevokeOperatorRequest(name=name, reason=reason), timeout=WAIT_S)


async def local(world: World) -> Caller:
    """The operator in the data directory's current file."""
    assert world.addresses.operator is not None
    kept = SimpleNamespace(**json.loads(world.addresses.operator.read_text()))
    return Caller(await world.channel(kept.key.encode(), kept.certificate.encode()))


async def test_each_operator_is_told_by_name_in_the_audit_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "atoll.server")
    dora = await named(world, "dora")
    run = await world.submit(job())
    await dora.control.CancelRun(control_pb2.CancelRunRequest(run=run, reason="mine"), timeout=WAIT_S)
    await revoke(world.operator, "dora", "lost\nlaptop")
    assert await listed(world) == {"admin": (1, ""), "dora": (0, r"lost\nlaptop")}
    seen = [message for message in caplog.messages if "operator dora" in message]
    assert seen == [
        "credential made for operator dora by operator admin",
        f"run {run} cancelled by operator dora: mine",
        "operator dora revoked by operator admin: lost\\nlaptop; 0 unused join tokens are void",
    ]


async def test_of_a_long_reason_the_beginning_is_kept(world: World) -> None:
    await named(world, "dora")
    done = await revoke(world.operator, "dora", "copied" + "!" * 5000)
    assert done.operator.revoked_reason.startswith("copied!")
    assert len(done.operator.revoked_reason) <= MAX_REASON_CHARS


async def test_one_that_is_revoked_is_refused_from_then_on_and_its_watch_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "REVOCATION_CHECK_S", 3600.0)
    dora, run = await named(world, "dora"), await world.submit(job())
    watching = dora.control.WatchRun(control_pb2.WatchRunRequest(run=run))
    await asyncio.wait_for(watching.read(), WAIT_S)
    await revoke(world.operator, "dora")

    async def rest() -> None:
        while await watching.read():
            pass

    assert await refused_code(rest()) == REVOKED
    assert await refused_code(dora.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)) == REVOKED


async def test_its_unused_tokens_no_longer_admit_participants(world: World, alice: Participant) -> None:
    dora = await named(world, "dora")
    used, unused, theirs = await world.token(by=dora), await world.token(by=dora), await world.token()
    kept = await world.enrol_with(used, Key())
    assert (await revoke(world.operator, "dora")).voided_tokens == 1
    assert await refused_code(world.enrol_with(unused, Key())) == ("UNAUTHENTICATED", "token.expired")
    await world.enrol_with(theirs, Key())
    found = await world.operator.control.ListParticipants(control_pb2.ListParticipantsRequest(), timeout=WAIT_S)
    assert {row.participant for row in found.participants if not row.revoked_at} >= {kept.participant, alice.name}


async def test_the_machines_own_operator_cannot_be_locked_out(world: World) -> None:
    """Revoking it makes copies of its credential useless; by then the data directory has a new one."""
    done = await revoke(world.operator, "admin", "copied")
    assert done.operator.name == "admin"
    assert await refused_code(world.operator.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)) == REVOKED
    again = await local(world)
    assert (await listed(world, again))["admin"] == (1, "")


async def test_a_name_belongs_to_one_operator_who_may_renew_it(world: World) -> None:
    dora = await named(world, "dora")
    with pytest.raises(AssertionError):
        await refused_code(named(world, "dora", by=dora))  # it was not refused: its own
    assert await refused_code(named(world, "dora")) == ("FAILED_PRECONDITION", "operator.exists")
    assert (await listed(world))["dora"] == (2, "")
    await revoke(world.operator, "dora")
    await listed(world, await named(world, "dora"))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": "../x"}, ("INVALID_ARGUMENT", "identity.name")),
        ({"name": ""}, ("INVALID_ARGUMENT", "identity.name")),
        ({"csr_pem": b"rubbish"}, ("INVALID_ARGUMENT", "identity.request")),
        ({"lifetime_s": 0.0}, ("INVALID_ARGUMENT", "operator.lifetime")),
        ({"lifetime_s": 91 * DAY_S}, ("INVALID_ARGUMENT", "operator.lifetime")),
        ({"lifetime_s": float("nan")}, ("INVALID_ARGUMENT", "operator.lifetime")),
    ],
)
async def test_what_cannot_be_is_refused(world: World, changes: dict[str, object], code: tuple[str, str]) -> None:
    asked = {"name": "dora", "csr_pem": Key().csr, "lifetime_s": DAY_S} | changes
    request = control_pb2.CreateOperatorRequest(**asked)  # type: ignore[arg-type]  # the test's own keyword arguments
    assert await refused_code(world.operator.control.CreateOperator(request, timeout=WAIT_S)) == code
    unknown = control_pb2.RevokeOperatorRequest(name="nobody")
    found = await refused_code(world.operator.control.RevokeOperator(unknown, timeout=WAIT_S))
    assert found == ("NOT_FOUND", "operator.missing")
