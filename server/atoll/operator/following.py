"""Following a run: its state now, and each change until it has ended, through interruptions of the connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import grpc

from atoll.operator.calls import Calls, away
from atoll.operator.errors import OperatorError, TimedOutError, UnreachableError, error_of, translated
from atoll.server.control import Following, Progress, make_readable, progress_of
from atoll.wire.v1 import control_pb2, control_pb2_grpc

MONTH_S = 30 * 86_400.0
"""How long a run is followed unless another time is given."""


def follow(calls: Calls, run: str, timeout_s: float, lost: Callable[[str], object]) -> Iterator[Progress]:
    """The run now and at every change until it has ended.

    ``lost`` is told when the connection breaks; the server then has ``Timeouts.reconnect_s`` to come back.

    Raises:
        TimedOutError: if the run has not ended in time.
        UnreachableError: if the server was never there, or is away for too long.
    """
    until, began = time.monotonic() + timeout_s, False
    while True:
        try:
            for progress in _changes(calls, run, max(0.001, until - time.monotonic())):
                began = True
                yield progress
                if progress.run.ended:
                    return
        except UnreachableError as error:
            _consider(error, run, timeout_s, until, may_return=began and calls.timeouts.reconnect_s > 0)
        lost(_waiting(calls))
        calls.wait_until_reachable(calls.timeouts.reconnect_s)


async def follow_async(
    calls: Calls, run: str, timeout_s: float, lost: Callable[[str], object]
) -> AsyncIterator[Progress]:
    """As ``follow``, for an event loop; cancelling the task that iterates ends the call."""
    until, began = time.monotonic() + timeout_s, False
    async with calls.target.open_async() as channel:
        while True:
            try:
                async for progress in _changes_async(calls, channel, run, max(0.001, until - time.monotonic())):
                    began = True
                    yield progress
                    if progress.run.ended:
                        return
            except UnreachableError as error:
                _consider(error, run, timeout_s, until, may_return=began and calls.timeouts.reconnect_s > 0)
            lost(_waiting(calls))
            try:
                async with asyncio.timeout(calls.timeouts.reconnect_s):
                    await channel.channel_ready()
            except TimeoutError:
                raise away(calls.address, calls.timeouts.reconnect_s) from None


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


def _consider(error: OperatorError, run: str, timeout_s: float, until: float, *, may_return: bool) -> None:
    """Raise what ends the following, unless the server may come back."""
    if time.monotonic() >= until:
        raise TimedOutError(f"run {run} had not ended after {timeout_s:g} s", "follow it again: it goes on") from error
    if not may_return:
        raise error


def _waiting(calls: Calls) -> str:
    return f"lost the server at {calls.address}; waiting up to {calls.timeouts.reconnect_s:.0f} s for it to come back"
