"""Repeat failed calls, with back-off, until they succeed or retrying is useless."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import grpc

from atoll.client._clock import now_s
from atoll.client._connection.backoff import Backoff
from atoll.client._connection.refusals import error_of, refusal_of, retry_after_s
from atoll.client.errors import UnreachableError

if TYPE_CHECKING:
    from atoll.client.control import TaskControl
    from atoll.client.limits import Limits

log = logging.getLogger("atoll.client")
T = TypeVar("T")

_LEAST_ASKED_S = 0.1
"""Shortest wait when a server asks for a retry, so that it cannot make the client call in a tight loop."""


class Abandoned(Exception):  # noqa: N818  # control flow: no error, the work is no longer wanted
    """The work was abandoned during a transfer."""


class TransferBroken(Exception):  # noqa: N818  # handled in this package by repeating the stream
    """A stream ended early, or its bytes do not match their digest."""


class Retrier:
    """Repeats a call until it succeeds, is refused permanently, is abandoned, or times out.

    ``until_s`` gives the end on the client's clock. ``progress`` resets the back-off.
    """

    def __init__(self, limits: Limits, control: TaskControl, what: str, until_s: Callable[[], float]) -> None:
        self._limits = limits
        self._backoff = Backoff(limits.backoff_base_s, limits.backoff_cap_s)
        self._control = control
        self._what = what
        self._until_s = until_s

    def progress(self) -> None:
        """Record that the call makes progress."""
        self._backoff.reset()

    def call(self, attempt: Callable[[], T]) -> T:
        """Run ``attempt`` until it returns.

        Raises:
            Abandoned: if the task was abandoned.
            NotPermittedError, RoundGoneError, RefusedError: if the server refused permanently.
            UnreachableError: if the time is over.
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
            self._pause(f"{code.name}: {text}", max(asked_s, _LEAST_ASKED_S))  # not a failure: no back-off
        else:
            self._wait(f"{code.name}: {text}", asked_s)

    def _wait(self, problem: str, at_least_s: float) -> None:
        self._pause(problem, max(self._backoff.next_s(), at_least_s))

    def _pause(self, problem: str, delay: float) -> None:
        if delay >= self._until_s() - now_s():
            raise UnreachableError(f"{self._what} failed until its time was over; last error: {problem}") from None
        log.warning("%s failed (%s); trying again in %.1f s", self._what, problem, delay)
        if self._control.abandoned.wait(delay):
            raise Abandoned(self._control.reason)
