"""Bounds on messages that are arriving: how many may be on their way at once, of one caller and of all.

From the moment a message is waited for, gRPC holds whatever arrives of it, up to the largest size that the port takes,
and does not say how much that is. So every message counts as the largest one until it is whole: a place. Messages of a
caller whose places are taken wait for them. Once the places of all are taken, the caller that has most of them loses
its oldest message to a caller that has fewer (max-min fairness: Bertsekas and Gallager, Data Networks, section 6.5.2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from atoll.server.errors import LimitExceededError

T = TypeVar("T")
_RETRY_S = 1.0


class _Arrival:
    """A message that is being received, or waits for a place, by one task."""

    __slots__ = ("_error", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._error: LimitExceededError | None = None

    @property
    def broken_off(self) -> bool:
        return self._error is not None

    def break_off(self, error: LimitExceededError) -> None:
        """Have the task raise this error in place of the message."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    def error(self) -> LimitExceededError | None:
        """Why the task was cancelled; None if it was for another reason (see ``asyncio.Task.uncancel``)."""
        if self._error is None or self._task is None or self._task.uncancel():
            return None
        return self._error


class _Caller:
    """The messages of one caller: those that arrive, oldest first, and how many there are with those that wait."""

    __slots__ = ("arriving", "name", "places", "total")

    def __init__(self, places: int, name: str) -> None:
        self.name = name
        self.places = asyncio.Semaphore(places)
        self.arriving: dict[_Arrival, None] = {}
        self.total = 0


class Intake:
    """Places for arriving messages. Single-threaded: only the event loop touches it.

    Args:
        each: places of one caller, at least 1.
        most: places of all callers together, at least 1.
    """

    def __init__(self, each: int, most: int) -> None:
        self._each = each
        self._free = asyncio.Semaphore(most)
        self._callers: dict[str, _Caller] = {}

    async def receive(self, caller: str, read: Callable[[], Awaitable[T]], within_s: float | None = None) -> T:
        """Await ``read`` in one of the caller's places.

        Args:
            caller: whose places.
            read: receives one message.
            within_s: seconds, waiting for a place included; None: the caller of this method bounds the wait.

        Raises:
            LimitExceededError: if the message is not whole in time, or its place went to a caller that has fewer.
        """
        mine, arrival = self._caller(caller), _Arrival()
        timer = None
        if within_s is not None:
            timer = asyncio.get_running_loop().call_later(within_s, _expire, arrival, within_s)
        mine.total += 1
        try:
            return await self._in_place(mine, arrival, read)
        except asyncio.CancelledError:
            error = arrival.error()
            if error is None:
                raise
            raise error from None
        finally:
            if timer is not None:
                timer.cancel()
            mine.total -= 1
            if not mine.total:
                del self._callers[caller]

    def __len__(self) -> int:
        """Callers that have messages on their way."""
        return len(self._callers)

    def _caller(self, name: str) -> _Caller:
        found = self._callers.get(name)
        if found is None:
            found = self._callers[name] = _Caller(self._each, name)
        return found

    async def _in_place(self, mine: _Caller, arrival: _Arrival, read: Callable[[], Awaitable[T]]) -> T:
        await mine.places.acquire()
        try:
            if self._free.locked():
                self._displace_for(mine)
            await self._free.acquire()
            mine.arriving[arrival] = None
            try:
                return await read()
            finally:
                del mine.arriving[arrival]
                self._free.release()
        finally:
            mine.places.release()

    def _displace_for(self, mine: _Caller) -> None:
        """Break off the oldest message of the caller that has most, if that leaves it with no fewer than ``mine``."""
        greediest = max(self._callers.values(), key=lambda caller: len(caller.arriving))
        if len(greediest.arriving) > len(mine.arriving) + 1:
            oldest = next((arrival for arrival in greediest.arriving if not arrival.broken_off), None)
            if oldest is not None:
                oldest.break_off(_crowded(greediest.name))


def _expire(arrival: _Arrival, within_s: float) -> None:
    error = LimitExceededError(
        "request.slow",
        f"the message was not whole within {within_s:g} s",
        "send it again, over a faster connection",
        retry_after_s=_RETRY_S,
    )
    arrival.break_off(error)


def _crowded(caller: str) -> LimitExceededError:
    return LimitExceededError(
        "request.crowded",
        f"{caller} had more messages on their way than any other caller, and others wait",
        "send fewer at once",
        retry_after_s=_RETRY_S,
    )
