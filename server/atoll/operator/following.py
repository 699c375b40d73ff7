"""Following a run: its state now, and each change until it has ended, through interruptions of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator

import grpc

from atoll.operator.calls import Calls, away
from atoll.operator.errors import OperatorError, TimedOutError, UnreachableError, error_of, translated
from atoll.server.control import Following, Progress, make_readable, progress_of
from atoll.wire.v1 import control_pb2, control_pb2_grpc

MONTH_S = 30 * 86_400.0
"""How long a run is followed unless another time is given."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
"""Seconds between two attempts to follow a run again."""


def follow(calls: Calls, run: str, timeout_s: float, lost: Callable[[str], object]) -> Iterator[Progress]:
    """The run now and at every change until it has ended.

    ``lost`` is told when the connection breaks; the server then has ``Timeouts.reconnect_s`` to come back.

    Raises:
        TimedOutError: if the run has not ended in time.
        UnreachableError: if the server was never there, or is away for too long.
    """
    patience = _Patience(calls, run, timeout_s)
    while True:
        try:
            for progress in _changes(calls, run, patience.left_s()):
                patience.renew()
                yield progress
                if progress.run.ended:
                    return
            error = None
        except UnreachableError as found:
            error = found
        pause_s = patience.pause_s(error)
        if patience.is_new:
            lost(_waiting(calls))
        time.sleep(pause_s)
        with contextlib.suppress(UnreachableError):  # the next attempt says it, or that the time is up
            calls.wait_until_reachable(patience.wait_s())


async def follow_async(
    calls: Calls, run: str, timeout_s: float, lost: Callable[[str], object]
) -> AsyncIterator[Progress]:
    """As ``follow``, for an event loop; cancelling the task that iterates ends the call."""
    patience = _Patience(calls, run, timeout_s)
    async with calls.target.open_async() as channel:
        while True:
            try:
                async for progress in _changes_async(calls, channel, run, patience.left_s()):
                    patience.renew()
                    yield progress
                    if progress.run.ended:
                        return
                error = None
            except UnreachableError as found:
                error = found
            pause_s = patience.pause_s(error)
            if patience.is_new:
                lost(_waiting(calls))
            await asyncio.sleep(pause_s)
            with contextlib.suppress(TimeoutError):  # the next attempt says it, or that the time is up
                async with asyncio.timeout(patience.wait_s()):
                    await channel.channel_ready()


def _changes(calls: Calls, run: str, timeout_s: float) -> Iterator[Progress]:
    stream = calls.stream(calls.control.WatchRun, control_pb2.WatchRunRequest(run=run), timeout_s)
    following = Following()
    with translated(calls.address):
        try:
            for message in stream:
                progress = _completed(following, message)
                if progress is not None:
                    yield progress
        finally:
            stream.cancel()


async def _changes_async(
    calls: Calls, channel: grpc.aio.Channel, run: str, timeout_s: float
) -> AsyncIterator[Progress]:
    method = control_pb2_grpc.ControlServiceStub(channel).WatchRun
    stream = calls.stream(method, control_pb2.WatchRunRequest(run=run), timeout_s)
    following = Following()
    try:
        async for message in stream:
            progress = _completed(following, message)
            if progress is not None:
                yield progress
    except grpc.RpcError as error:
        raise error_of(error, calls.address) from error
    finally:
        stream.cancel()


def _completed(following: Following, message: control_pb2.WatchRunResponse) -> Progress | None:
    make_readable(message)
    complete = following.complete(message)
    return None if complete is None else progress_of(complete)


class _Patience:
    """How long a run is followed, and for how long a server that is away is waited for."""

    def __init__(self, calls: Calls, run: str, timeout_s: float) -> None:
        self._address = calls.address
        self._reconnect_s = calls.timeouts.reconnect_s
        self._run = run
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._away_until: float | None = None
        self._pause_s = 0.0
        self._began = False
        self.is_new = False
        """Whether the interruption has just begun, so that it is worth telling."""

    def left_s(self) -> float:
        """Seconds until the run is given up."""
        return max(0.001, self._until - time.monotonic())

    def renew(self) -> None:
        """Note that the server is there."""
        self._began, self._away_until, self._pause_s = True, None, 0.0

    def pause_s(self, error: OperatorError | None) -> float:
        """Seconds before the next attempt, more after each failure.

        Raises:
            TimedOutError: if the run is given up.
            OperatorError: this one, if the server was never there; ``UnreachableError`` if it is away for too long.
        """
        now = time.monotonic()
        if now >= self._until:
            raise TimedOutError(
                f"run {self._run} had not ended after {self._timeout_s:g} s", "follow it again: it goes on"
            ) from error
        if error is not None and not (self._began and self._reconnect_s > 0):
            raise error
        self.is_new = self._away_until is None
        if self._away_until is None:
            self._away_until = now + self._reconnect_s
        elif now >= self._away_until:
            raise away(self._address, self._reconnect_s) from error
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        return min(self._pause_s, self.wait_s())

    def wait_s(self) -> float:
        """Seconds that may be waited for the server."""
        away_until = self._until if self._away_until is None else min(self._until, self._away_until)
        return max(0.001, away_until - time.monotonic())


def _waiting(calls: Calls) -> str:
    return f"lost the server at {calls.address}; waiting up to {calls.timeouts.reconnect_s:.0f} s for it to come back"
