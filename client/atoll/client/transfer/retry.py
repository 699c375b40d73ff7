"""Which failed calls are worth repeating, and how long to wait."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import grpc

from atoll.client.backoff import Backoff
from atoll.client.clock import now_s
from atoll.client.errors import NotPermittedError, RefusedError, RoundGoneError, UnreachableError
from atoll.wire.status import ErrorDetail, Fault, Recovery, detail_from_trailers
from atoll.wire.text import printable

if TYPE_CHECKING:
    from atoll.client.control import TaskControl
    from atoll.client.limits import Limits

log = logging.getLogger("atoll.client")
T = TypeVar("T")

# What a call without a detail, which gRPC itself or a proxy ended, is taken for: docs/protocol.md, "Errors".
_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_LEAST_ASKED_S = 0.1
"""A server that asks for shorter waits, over and over, is not taken at its word."""
_TOO_LARGE = ("larger than max", "metadata size exceeds")
"""How gRPC words refusals of its own that come again however often the call is repeated."""
_NOT_ADMITTED = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})


class Abandoned(Exception):  # noqa: N818  # control flow: the work is no longer wanted, which is nobody's error
    """The work was abandoned while a transfer was under way."""


class TransferBroken(Exception):  # noqa: N818  # never leaves this package: the stream is simply tried again
    """A stream that ended early or brought bytes that do not match their digest."""


def error_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, ErrorDetail | None]:
    """Status, text and detail of a failed call, sync or async."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return grpc.StatusCode.UNKNOWN, str(error), None
    detail = detail_from_trailers(error.trailing_metadata() or ())
    if detail is not None:
        return error.code(), printable(str(detail)), detail
    text = error.details() or error.code().name
    return error.code(), printable(text.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")), None


def refusal_of(error: grpc.RpcError) -> Exception | None:
    """The error to raise for a failed call that should not be repeated; None for one that may be."""
    code, text, detail = error_of(error)
    if detail is None and _is_too_large(code, text):
        return RefusedError(f"the message is beyond the server's limits: {text}")
    match _by_status(code) if detail is None else detail.recovery:
        case Recovery.REPEAT:
            return None
        case Recovery.ENROL:
            return NotPermittedError(f"the server does not accept this participant: {text}")
        case Recovery.NEXT_TASK if detail is not None and detail.fault is Fault.TIMING:
            return RoundGoneError(text, detail)
        case _:
            return RefusedError(text, detail)


def retry_after_s(detail: ErrorDetail | None, limits: Limits) -> float:
    """The wait that a refusal asks for, up to a quarter longer so that those who wait do not all come back at once.

    0.0 if it asks for none; never above ``limits.retry_after_cap_s``.
    """
    if detail is None or detail.retry_after_s is None:
        return 0.0
    spread = random.uniform(1.0, 1.25)  # noqa: S311  # spreads load, hides nothing
    return min(detail.retry_after_s * spread, limits.retry_after_cap_s)


def _by_status(code: grpc.StatusCode) -> Recovery:
    if code in _NOT_ADMITTED:
        return Recovery.ENROL
    return Recovery.REPEAT if code in _TRANSIENT else Recovery.NEXT_TASK


def _is_too_large(code: grpc.StatusCode, text: str) -> bool:
    return code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(words in text for words in _TOO_LARGE)


class Retrier:
    """Repeats a call until it succeeds, is refused for good, is abandoned, or its time is over.

    ``until_s`` is on the client's clock. ``progress`` tells it that the call got somewhere, which
    shortens delays again.
    """

    def __init__(self, limits: Limits, control: TaskControl, what: str, until_s: Callable[[], float]) -> None:
        self._limits = limits
        self._backoff = Backoff(limits.backoff_base_s, limits.backoff_cap_s)
        self._control = control
        self._what = what
        self._until_s = until_s

    def progress(self) -> None:
        """The call moved on."""
        self._backoff.reset()

    def call(self, attempt: Callable[[], T]) -> T:
        """Run ``attempt`` until it returns.

        Raises:
            Abandoned: if the task was abandoned.
            NotPermittedError, RoundGoneError, RefusedError: if the server refused for good.
            UnreachableError: if time is over.
        """
        while True:
            if self._control.abandoned.is_set():
                raise Abandoned(self._control.reason)
            try:
                return attempt()
            except TransferBroken as error:
                self._wait(str(error), 0.0)
            except grpc.RpcError as error:
                self._wait_after(error)

    def _wait_after(self, error: grpc.RpcError) -> None:
        if self._control.abandoned.is_set():
            raise Abandoned(self._control.reason) from None
        refusal = refusal_of(error)
        if refusal is not None:
            raise refusal from None
        code, text, detail = error_of(error)
        asked_s = retry_after_s(detail, self._limits)
        if asked_s and code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._pause(f"{code.name}: {text}", max(asked_s, _LEAST_ASKED_S))  # told to wait, which is no failure
        else:
            self._wait(f"{code.name}: {text}", asked_s)

    def _wait(self, problem: str, at_least_s: float) -> None:
        self._pause(problem, max(self._backoff.next_s(), at_least_s))

    def _pause(self, problem: str, delay: float) -> None:
        if delay >= self._until_s() - now_s():
            raise UnreachableError(f"{self._what} failed until its time was over; at last: {problem}") from None
        log.warning("%s failed (%s); trying again in %.1f s", self._what, problem, delay)
        if self._control.abandoned.wait(delay):
            raise Abandoned(self._control.reason)
