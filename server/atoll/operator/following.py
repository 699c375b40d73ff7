"""Follow a run: its current state, then each change until it has ended, across lost connections.

``_Course`` decides the next step without waiting or calling; ``follow`` and ``follow_async`` carry it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import grpc

from atoll.operator.calls import Calls, away
from atoll.operator.errors import TimedOutError, UnreachableError, error_of, translated
from atoll.server.control import Following, Progress, make_readable, progress_of
from atoll.wire.v1 import control_pb2, control_pb2_grpc

MONTH_S = 30 * 86_400.0
"""Default time for which a run is followed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
"""Seconds between two attempts to follow a run again."""


@dataclass(frozen=True)
class Clock:
    """A monotonic clock and its sleep; tests have their own."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    sleep_async: Callable[[float], Awaitable[object]] = asyncio.sleep


MACHINE = Clock()
"""This machine's clock."""


def follow(
    calls: Calls,
    run: str,
    timeout_s: float,
    lost: Callable[[str], object],
    clock: Clock = MACHINE,
    *,
    pace_s: float = 0.0,
) -> Iterator[Progress]:
    """The run now and at every change until it has ended.

    ``lost`` is called when the connection breaks; the server then has ``Timeouts.reconnect_s`` to come back.

    Raises:
        TimedOutError: if the run has not ended in time.
        UnreachableError: if the server was never reachable, or is unreachable for too long.
    """
    course = _Course(calls, run, timeout_s, lost, clock.now_s)
    while not course.ended:
        with course.attempt():
            for progress in _changes(calls, run, course.left_s(), pace_s):
                yield course.noted(progress)
        if not course.ended:
            clock.sleep(course.pause_s())
            with contextlib.suppress(UnreachableError):  # the next attempt raises this, or the time-out
                calls.wait_until_reachable(course.wait_s())


async def follow_async(
    calls: Calls,
    run: str,
    timeout_s: float,
    lost: Callable[[str], object],
    clock: Clock = MACHINE,
    *,
    pace_s: float = 0.0,
) -> AsyncIterator[Progress]:
    """As ``follow``, for an event loop; cancelling the task that iterates ends the call."""
    course = _Course(calls, run, timeout_s, lost, clock.now_s)
    async with calls.target.open_async() as channel:
        while not course.ended:
            with course.attempt():
                async for progress in _changes_async(calls, channel, run, course.left_s(), pace_s):
                    yield course.noted(progress)
            if not course.ended:
                await clock.sleep_async(course.pause_s())
                with contextlib.suppress(TimeoutError):  # as above
                    async with asyncio.timeout(course.wait_s()):
                        await channel.channel_ready()


def _changes(calls: Calls, run: str, timeout_s: float, pace_s: float) -> Iterator[Progress]:
    stream = calls.stream(calls.control.WatchRun, control_pb2.WatchRunRequest(run=run, pace_s=pace_s), timeout_s)
    following = Following()
    with translated(calls.address):
        try:
            for message in stream:
                progress = _completed(following, message)
                if progress is not None:
                    yield progress
                    if progress.run.ended:
                        return
        finally:
            stream.cancel()


async def _changes_async(
    calls: Calls, channel: grpc.aio.Channel, run: str, timeout_s: float, pace_s: float
) -> AsyncIterator[Progress]:
    method = control_pb2_grpc.ControlServiceStub(channel).WatchRun
    stream = calls.stream(method, control_pb2.WatchRunRequest(run=run, pace_s=pace_s), timeout_s)
    following = Following()
    try:
        async for message in stream:
            progress = _completed(following, message)
            if progress is not None:
                yield progress
                if progress.run.ended:
                    return
    except grpc.RpcError as error:
        raise error_of(error, calls.address) from error
    finally:
        stream.cancel()


def _completed(following: Following, message: control_pb2.WatchRunResponse) -> Progress | None:
    make_readable(message)
    complete = following.complete(message)
    return None if complete is None else progress_of(complete)


class _Course:
    """Retries while a run is followed: durations, pauses, and when to give up.

    Attributes:
        ended: whether the run has ended.
    """

    def __init__(
        self, calls: Calls, run: str, timeout_s: float, lost: Callable[[str], object], now_s: Callable[[], float]
    ) -> None:
        self._address = calls.address
        self._reconnect_s = calls.timeouts.reconnect_s
        self._run, self._timeout_s = run, timeout_s
        self._lost, self._now_s = lost, now_s
        self._until = now_s() + timeout_s
        self._away_until: float | None = None
        self._pause_s = 0.0
        self._began = False
        self._error: UnreachableError | None = None
        self.ended = False

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """A context around one stream of changes, which keeps the error if the server is unreachable."""
        self._error = None
        try:
            yield
        except UnreachableError as error:
            self._error = error

    def noted(self, progress: Progress) -> Progress:
        """Return the change, and note that the server is reachable."""
        self._began, self._away_until, self._pause_s = True, None, 0.0
        self.ended = progress.run.ended
        return progress

    def left_s(self) -> float:
        """Seconds until following times out."""
        return max(0.001, self._until - self._now_s())

    def pause_s(self) -> float:
        """Seconds before the next attempt, more after each failure; reports a lost connection once.

        Raises:
            TimedOutError: if the time is over.
            UnreachableError: if the server was never reachable, or is unreachable for too long.
        """
        now = self._now_s()
        if now >= self._until:
            raise TimedOutError(
                f"run {self._run} had not ended after {self._timeout_s:g} s", "follow it again: it goes on"
            ) from self._error
        if self._error is not None and not (self._began and self._reconnect_s > 0):
            raise self._error
        if self._away_until is None:
            self._away_until = now + self._reconnect_s
            self._lost(
                f"lost the server at {self._address}; waiting up to {self._reconnect_s:.0f} s for it to come back"
            )
        elif now >= self._away_until:
            raise away(self._address, self._reconnect_s) from self._error
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        return min(self._pause_s, self.wait_s())

    def wait_s(self) -> float:
        """Seconds to wait for the server."""
        away_until = self._until if self._away_until is None else min(self._until, self._away_until)
        return max(0.001, away_until - self._now_s())
