from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from atoll.client import Limits, NotPermittedError, RefusedError, RoundGoneError, UnreachableError
from atoll.client._clock import now_s
from atoll.client._connection.refusals import error_of
from atoll.client._transfer.retrier import Abandoned, Retrier, TransferBroken
from atoll.client.control import TaskControl
from atoll.wire.status import ErrorDetail, Fault, Recovery
from tests.patience import WAIT_S

FAST = dataclasses.replace(Limits(), backoff_base_s=0.001, backoff_cap_s=0.01)
Code = grpc.StatusCode
NO_MEMBER = ErrorDetail("participant.revoked", Fault.CALLER, "x", recovery=Recovery.ENROL)


class FailedCall(grpc.RpcError, grpc.Call):
    """A failed call, as the sync API raises it."""

    def __init__(self, code: grpc.StatusCode, details: str = "", detail: ErrorDetail | None = None) -> None:
        super().__init__()
        self._values = code, details, detail

    def code(self) -> grpc.StatusCode:
        return self._values[0]

    def details(self) -> str:
        return self._values[1]

    def trailing_metadata(self) -> Any:
        return () if self._values[2] is None else (self._values[2].trailer(),)

    def initial_metadata(self) -> Any:
        return ()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        del callback
        return False

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> float:
        return 0.0

    def cancel(self) -> bool:
        return False


def run(*outcomes: Exception | int, seconds: float = WAIT_S, control: TaskControl | None = None) -> int:
    """Let a call have these outcomes, one after the other."""
    waiting = list(outcomes)

    def attempt() -> int:
        outcome = waiting.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    until = now_s() + seconds
    return Retrier(FAST, control or TaskControl(60.0), "upload", lambda: until).call(attempt)


@pytest.mark.parametrize(
    "code", [Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.ABORTED, Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED]
)
def test_temporary_errors_are_tried_again(code: grpc.StatusCode, caplog: pytest.LogCaptureFixture) -> None:
    assert run(FailedCall(code, "went away"), TransferBroken("half"), 7) == 7
    assert "upload failed" in caplog.text
    assert "went away" in caplog.text
    assert "trying again in" in caplog.text


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FailedCall(Code.NOT_FOUND, "no blob"), RefusedError),
        (FailedCall(Code.INVALID_ARGUMENT, "bad"), RefusedError),
        (FailedCall(Code.DATA_LOSS, "damaged"), RefusedError),
        (FailedCall(Code.UNAVAILABLE, "", ErrorDetail("x", Fault.CALLER, "not again")), RefusedError),
        (
            FailedCall(Code.UNAVAILABLE, "", ErrorDetail("x", Fault.SERVER, "x", recovery=Recovery.NEXT_TASK)),
            RefusedError,
        ),
        (
            FailedCall(Code.INTERNAL, "", NO_MEMBER),
            NotPermittedError,
        ),
        (FailedCall(Code.ABORTED, "", ErrorDetail("round.over", Fault.TIMING, "over")), RoundGoneError),
        (FailedCall(Code.UNAUTHENTICATED, "who?"), NotPermittedError),
        (FailedCall(Code.PERMISSION_DENIED, "no"), NotPermittedError),
        (
            FailedCall(
                Code.PERMISSION_DENIED,
                "",
                NO_MEMBER,
            ),
            NotPermittedError,
        ),
        (FailedCall(Code.PERMISSION_DENIED, "", ErrorDetail("round.stranger", Fault.CALLER, "x")), RefusedError),
    ],
)
def test_permanent_errors_are_raised_at_once(error: FailedCall, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        run(error, 7)


def test_the_servers_own_faults_are_tried_again() -> None:
    busy = ErrorDetail("server.busy", Fault.SERVER, "busy", retry_after_s=0.01)
    odd = ErrorDetail("limit", Fault.CALLER, "too fast", retry_after_s=0.01)
    assert run(FailedCall(Code.FAILED_PRECONDITION, "", busy), FailedCall(Code.RESOURCE_EXHAUSTED, "", odd), 3) == 3


def test_what_the_detail_says_goes_before_the_status() -> None:
    again = ErrorDetail("x", Fault.CALLER, "x", recovery=Recovery.REPEAT)
    assert run(FailedCall(Code.INVALID_ARGUMENT, "", again), FailedCall(Code.PERMISSION_DENIED, "", again), 5) == 5


def test_the_wait_is_at_least_what_the_server_asks_for() -> None:
    later = ErrorDetail("server.busy", Fault.SERVER, "busy", retry_after_s=0.2)
    started = now_s()
    run(FailedCall(Code.UNAVAILABLE, "", later), 1)
    assert now_s() - started >= 0.2


def test_retries_end_after_the_given_time() -> None:
    with pytest.raises(UnreachableError, match="upload failed until its time was over; last error: UNAVAILABLE: gone"):
        run(*[FailedCall(Code.UNAVAILABLE, "gone")] * 1000, seconds=0.05)


def test_abandoned_work_is_not_tried_again() -> None:
    control = TaskControl(60.0)
    control.abandon("over-selected")
    with pytest.raises(Abandoned, match="over-selected"):
        run(7, control=control)


def test_abandoning_ends_the_wait() -> None:
    control = TaskControl(60.0)
    later = ErrorDetail("server.busy", Fault.SERVER, "busy", retry_after_s=50.0)

    def attempt() -> None:
        control.stop("enough")
        control.abandoned.set()
        raise FailedCall(Code.UNAVAILABLE, "", later)

    with pytest.raises(Abandoned, match="enough"):
        Retrier(FAST, control, "upload", lambda: now_s() + 60).call(attempt)


def test_texts_are_short() -> None:
    long = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:5: Connection refused"
    assert error_of(FailedCall(Code.UNAVAILABLE, long))[1] == "ipv4:127.0.0.1:5: Connection refused"
    assert error_of(grpc.RpcError("odd"))[:2] == (Code.UNKNOWN, "odd")


def busy(wait_s: float) -> FailedCall:
    detail = ErrorDetail("stream.places", Fault.CALLER, "32 transfers open already", retry_after_s=wait_s)
    return FailedCall(Code.RESOURCE_EXHAUSTED, "", detail)


def test_a_demand_to_wait_is_not_counted_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it happens, the delays are those that the server asks for, and do not grow."""
    waits: list[float] = []
    control = TaskControl(3600.0)
    monkeypatch.setattr(control.abandoned, "wait", waits.append)
    slow = dataclasses.replace(Limits(), backoff_base_s=1000.0, backoff_cap_s=1000.0)
    retrier = Retrier(slow, control, "upload", lambda: now_s() + 3600.0)
    outcomes: list[Exception | int] = [busy(0.5) for _ in range(50)]

    def attempt() -> int:
        outcome = outcomes.pop() if outcomes else 7
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert retrier.call(attempt) == 7
    assert len(waits) == 50
    assert all(0.5 <= wait <= 0.625 for wait in waits)
    assert len(set(waits)) > 1


def test_repeated_demands_to_retry_at_once_are_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    control = TaskControl(3600.0)
    monkeypatch.setattr(control.abandoned, "wait", waits.append)
    outcomes: list[Exception | int] = [*(busy(1e-12) for _ in range(50)), 7]

    def attempt() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert Retrier(FAST, control, "upload", lambda: now_s() + 3600.0).call(attempt) == 7
    assert min(waits) >= 0.1


@pytest.mark.parametrize("asked_s", [float("nan"), float("inf"), -5.0])
def test_a_wait_that_cannot_be_leaves_the_delay_to_the_client(asked_s: float) -> None:
    assert run(busy(asked_s), 7) == 7


def test_a_wait_is_bounded() -> None:
    limits = dataclasses.replace(FAST, retry_after_cap_s=0.01)
    outcomes = [busy(1e300)]

    def attempt() -> int:
        if outcomes:
            raise outcomes.pop()
        return 7

    assert Retrier(limits, TaskControl(WAIT_S), "upload", lambda: now_s() + WAIT_S).call(attempt) == 7


@pytest.mark.parametrize(
    "words",
    [
        "SERVER: Received message larger than max (8 vs. 4)",
        "Decompressed message larger than max",
        "received metadata size exceeds hard limit",
    ],
)
def test_what_is_too_large_for_the_server_is_not_sent_again(words: str) -> None:
    with pytest.raises(RefusedError, match="beyond the server's limits"):
        run(FailedCall(Code.RESOURCE_EXHAUSTED, words), 7)
