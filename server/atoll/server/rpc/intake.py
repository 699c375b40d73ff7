"""Limits on the messages that are received concurrently, per caller and in total.

While the server waits for a message, gRPC buffers the part that has arrived, up to the port's maximum message size, and
does not expose its size. So each message that is being received counts with the maximum size and takes a slot. Messages
of a caller whose slots are taken wait. The slots of all callers together are shared max-min fairly (Bertsekas and
Gallager, Data Networks, section 6.5.2): a free slot goes to the waiting caller with the fewest messages. If none is
free, the caller with the most loses its oldest message to a caller with fewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from atoll.server.errors import LimitExceededError

T = TypeVar("T")
_RETRY_S = 1.0


class _Arrival:
    """A message that one task receives, or waits to receive."""

    __slots__ = ("_error", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._error: LimitExceededError | None = None

    def break_off(self, error: LimitExceededError) -> None:
        """Make the task raise this error instead of returning the message."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    def error(self) -> LimitExceededError | None:
        """The error that ``break_off`` cancelled the task with; None if it did not (see ``asyncio.Task.uncancel``)."""
        if self._error is None or self._task is None or self._task.uncancel():
            return None
        return self._error


class _Caller:
    """The messages of one caller.

    Attributes:
        places: number of its messages that may hold or wait for one of the shared slots.
        waiting: messages that wait for a shared slot, oldest first, each with the future that grants it one.
        arriving: messages that have a slot and were not broken off, oldest first.
        total: number of all its messages, including those that wait for one of the caller's own slots.
    """

    __slots__ = ("arriving", "name", "places", "total", "waiting")

    def __init__(self, places: int, name: str) -> None:
        self.name = name
        self.places = asyncio.Semaphore(places)
        self.waiting: dict[_Arrival, asyncio.Future[None]] = {}
        self.arriving: dict[_Arrival, None] = {}
        self.total = 0


class _ByCount:
    """Callers by number of arriving messages: finds one with the fewest or the most without a search."""

    def __init__(self, most: int) -> None:
        self._callers: list[dict[_Caller, None]] = [{} for _ in range(most + 1)]

    def put(self, caller: _Caller) -> None:
        """Add a caller, after those with the same number."""
        self._callers[len(caller.arriving)][caller] = None

    def drop(self, caller: _Caller) -> None:
        """Remove a caller, if present; call it before the number of its arriving messages changes."""
        self._callers[len(caller.arriving)].pop(caller, None)

    def with_fewest(self) -> _Caller | None:
        """The caller with the fewest messages, the first added if there are several; None if there is no caller."""
        return next((next(iter(callers)) for callers in self._callers if callers), None)

    def with_most(self) -> _Caller | None:
        """The caller with the most messages, the first added if there are several; None if there is no caller."""
        return next((next(iter(callers)) for callers in reversed(self._callers) if callers), None)


class Intake:
    """Slots for arriving messages. Single-threaded: only the event loop uses it.

    Args:
        each: slots of one caller, at least 1.
        most: slots of all callers together, at least 1.
    """

    def __init__(self, each: int, most: int) -> None:
        self._each = each
        self._free = most
        self._callers: dict[str, _Caller] = {}
        self._holding = _ByCount(each)
        self._waiting = _ByCount(each)

    async def receive(self, caller: str, read: Callable[[], Awaitable[T]], within_s: float | None = None) -> T:
        """Await ``read`` in one of the caller's slots.

        Args:
            caller: name of the caller.
            read: receives one message.
            within_s: maximum seconds, including the wait for a slot; None if the caller of this method bounds the wait.

        Raises:
            LimitExceededError: if the message is not complete in time, or its slot went to a caller with fewer
                messages.
        """
        mine, arrival = self._caller(caller), _Arrival()
        timer = None
        if within_s is not None:
            timer = asyncio.get_running_loop().call_later(within_s, _expire, arrival, within_s)
        mine.total += 1
        try:
            async with mine.places:
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
        """Number of callers with arriving messages."""
        return len(self._callers)

    def _caller(self, name: str) -> _Caller:
        found = self._callers.get(name)
        if found is None:
            found = self._callers[name] = _Caller(self._each, name)
        return found

    async def _in_place(self, mine: _Caller, arrival: _Arrival, read: Callable[[], Awaitable[T]]) -> T:
        if self._free:  # then no message waits
            self._free -= 1
            self._hold(mine, arrival)
        else:
            self._displace_for(mine)
            await self._turn(mine, arrival)
        try:
            return await read()
        finally:
            self._let_go(mine, arrival)
            self._pass_on()

    async def _turn(self, mine: _Caller, arrival: _Arrival) -> None:
        """Wait until ``_pass_on`` gives the message a slot."""
        turn = mine.waiting[arrival] = asyncio.get_running_loop().create_future()
        if len(mine.waiting) == 1:
            self._waiting.put(mine)
        try:
            await turn
        except asyncio.CancelledError:
            if arrival in mine.waiting:
                del mine.waiting[arrival]
                if not mine.waiting:
                    self._waiting.drop(mine)
            else:  # it was granted a slot at the same time
                self._let_go(mine, arrival)
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give a free slot to the oldest message of the waiting caller with the fewest."""
        fewest = self._waiting.with_fewest()
        if fewest is None:
            self._free += 1
            return
        arrival = next(iter(fewest.waiting))
        turn = fewest.waiting[arrival]
        self._hold(fewest, arrival)
        if not turn.done():
            turn.set_result(None)

    def _hold(self, caller: _Caller, arrival: _Arrival) -> None:
        self._unfile(caller)
        caller.waiting.pop(arrival, None)
        caller.arriving[arrival] = None
        self._file(caller)

    def _let_go(self, caller: _Caller, arrival: _Arrival) -> None:
        if arrival in caller.arriving:
            self._unfile(caller)
            del caller.arriving[arrival]
            self._file(caller)

    def _file(self, caller: _Caller) -> None:
        if caller.arriving:
            self._holding.put(caller)
        if caller.waiting:
            self._waiting.put(caller)

    def _unfile(self, caller: _Caller) -> None:
        self._holding.drop(caller)
        self._waiting.drop(caller)

    def _displace_for(self, mine: _Caller) -> None:
        """Break off the oldest message of the caller with the most, if it is left with no fewer than ``mine``.

        A message that was broken off keeps its slot until its task has ended, and the newcomer waits until then.
        Waiting messages of ``mine`` therefore count too; otherwise each message of a burst would break off another, far
        beyond the fair share of ``mine``. If ``mine`` already has its fair share and waits, it loses nothing: free
        slots go to the caller with the fewest messages, so no caller can get two more than ``mine`` meanwhile.
        """
        greediest = self._holding.with_most()
        if greediest is None or len(greediest.arriving) <= len(mine.arriving) + len(mine.waiting) + 1:
            return
        oldest = next(iter(greediest.arriving))
        self._let_go(greediest, oldest)  # its slot is free once its task has ended
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
