"""The audit trail in the server's log: each command with its operator, and no secret."""

import logging
from collections.abc import Iterator

import pytest

from atoll.wire.v1 import control_pb2, enrolment_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import Key, Participant, World, job, refused_code


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, "atoll.server"):
        yield


def log_lines(caplog: pytest.LogCaptureFixture, field: str, value: str) -> list[tuple[str, str]]:
    """(level, message) of the records that name this run or participant."""
    return [
        (record.levelname, record.getMessage()) for record in caplog.records if vars(record).get(field, "") == value
    ]


async def test_of_a_participant(world: World, caplog: pytest.LogCaptureFixture) -> None:
    token, key = await world.token("acme"), Key()
    answer = await world.enrol_with(token, key)
    name, channel = answer.participant, await world.channel(key.pem, answer.certificate_pem)
    alice = Participant(channel, name, key, answer.certificate_pem)
    async with alice.check_in(client_version="1.0\nforged"):
        pass
    await alice.renewal.Renew(enrolment_pb2.RenewRequest(csr_pem=Key().csr), timeout=WAIT_S)
    request = control_pb2.RevokeParticipantRequest(participant=name, reason="lost\nlaptop")
    await world.operator.control.RevokeParticipant(request, timeout=WAIT_S)
    for _ in range(3):
        await refused_code(alice.renewal.Renew(enrolment_pb2.RenewRequest(csr_pem=Key().csr), timeout=WAIT_S))
    assert sorted(log_lines(caplog, "participant", name)) == sorted(
        [
            (
                "INFO",
                f"participant {name} enrolled: project default, organisation acme, kind edge, token {token.token_id}",
            ),
            ("DEBUG", r"connected, client version 1.0\nforged"),
            ("DEBUG", "disconnected"),
            ("INFO", f"certificate of {name} renewed"),
            ("INFO", rf"participant {name} revoked by operator admin: lost\nlaptop"),
            ("WARNING", rf"refused: the certificate of {name} was revoked: lost\nlaptop"),
        ]
    )
    assert "1 join tokens made: project default, organisation acme, kind edge, operator admin" in caplog.messages
    assert token.secret not in caplog.text
    assert "BEGIN CERTIFICATE" not in caplog.text


async def test_of_a_run(world: World, caplog: pytest.LogCaptureFixture) -> None:
    run, control = await world.submit(job()), world.operator.control
    await control.PauseRun(control_pb2.PauseRunRequest(run=run), timeout=WAIT_S)
    await control.ResumeRun(control_pb2.ResumeRunRequest(run=run), timeout=WAIT_S)
    await control.CancelRun(control_pb2.CancelRunRequest(run=run, reason="wrong\ndata"), timeout=WAIT_S)
    await control.ExtendRun(control_pb2.ExtendRunRequest(run=run, rounds=2), timeout=WAIT_S)
    await control.CancelRun(control_pb2.CancelRunRequest(run=run, reason="again"), timeout=WAIT_S)
    await control.DeleteRun(control_pb2.DeleteRunRequest(run=run), timeout=WAIT_S)
    found = [
        message for level, message in log_lines(caplog, "run", run) if level == "INFO" and "by operator" in message
    ]
    assert found == [
        f"run {run} submitted by operator admin",
        f"run {run} paused by operator admin",
        f"run {run} resumed by operator admin",
        rf"run {run} cancelled by operator admin: wrong\ndata",
        f"run {run} extended by 2 rounds by operator admin",
        f"run {run} cancelled by operator admin: again",
        f"run {run} deleted by operator admin",
    ]


async def test_the_wrong_role_is_told_once(alice: Participant, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        call = alice.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
        assert await refused_code(call) == ("PERMISSION_DENIED", "certificate.role")
    (warning,) = [message for level, message in log_lines(caplog, "participant", alice.name) if level == "WARNING"]
    assert "needs an operator's certificate" in warning
