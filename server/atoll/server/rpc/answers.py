"""Limits on unread answers: how long and how many bytes gRPC keeps for callers that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from atoll.server.config.limits import MIB, Limits
from atoll.server.errors import LimitExceededError
from atoll.server.rpc.admission import Call

UNREAD = "stream.unread"

GiveUp = Callable[[LimitExceededError], None]
"""Closes the connection over which an answer was sent."""


class _Answer:
    """An answer that its caller has not read yet.

    Attributes:
        size: bytes of the answer.
        give_up: see ``GiveUp``.
        timer: calls ``give_up`` when the time is up.
    """

    __slots__ = ("give_up", "size", "timer")

    def __init__(self, size: int, give_up: GiveUp) -> None:
        self.size = size
        self.give_up = give_up
        self.timer: asyncio.TimerHandle | None = None


class _Caller:
    """The answers of one caller, oldest first, and their total bytes."""

    __slots__ = ("answers", "size")

    def __init__(self) -> None:
        self.answers: dict[_Answer, None] = {}
        self.size = 0


class Answers:
    """Unread answers to calls with a single answer: passed to gRPC, but not yet read by their callers.

    A caller has ``unread_s`` for each ``message_bytes`` of an answer. A caller with more than ``unread_mib_per_caller``
    unread loses its oldest answers. If all callers together have more than ``unread_mib`` unread, the caller with the
    most loses its oldest. A caller's newest answer is kept regardless of its size. Single-threaded: only the event loop
    uses it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._callers: dict[str, _Caller] = {}
        self._size = 0

    def expect(self, caller: str, size: int, call: Call, give_up: GiveUp) -> None:
        """Call ``give_up`` if ``caller`` does not read the answer to ``call`` in time, or leaves too much unread.

        Args:
            caller: the name that the answer is counted for.
            size: bytes of the answer.
            call: ends when the answer has been read.
            give_up: see ``GiveUp``.
        """
        answer = _Answer(size, give_up)
        mine = self._callers.setdefault(caller, _Caller())
        mine.answers[answer] = None
        mine.size += size
        self._size += size
        within_s = self._limits.unread_s * max(1.0, size / self._limits.message_bytes)

        def late() -> None:
            self._end(caller, answer, _late(size, within_s))

        def ended(_: Any) -> None:
            self._forget(caller, answer)

        answer.timer = asyncio.get_running_loop().call_later(within_s, late)
        call.add_done_callback(ended)
        self._limit(caller, mine)

    def __len__(self) -> int:
        """Total bytes of all answers."""
        return self._size

    def _limit(self, caller: str, mine: _Caller) -> None:
        each, most = self._limits.unread_mib_per_caller * MIB, self._limits.unread_mib * MIB
        while mine.size > each and len(mine.answers) > 1:
            self._end(caller, next(iter(mine.answers)), _crowded(caller))
        while self._size > most:
            others = ((name, one) for name, one in self._callers.items() if len(one.answers) > 1 or one is not mine)
            greediest = max(others, key=lambda named: named[1].size, default=None)
            if greediest is None:
                return
            self._end(greediest[0], next(iter(greediest[1].answers)), _crowded(greediest[0]))

    def _end(self, caller: str, answer: _Answer, error: LimitExceededError) -> None:
        self._forget(caller, answer)
        answer.give_up(error)

    def _forget(self, caller: str, answer: _Answer) -> None:
        mine = self._callers.get(caller)
        if mine is None or answer not in mine.answers:  # already given up
            return
        del mine.answers[answer]
        mine.size -= answer.size
        self._size -= answer.size
        if answer.timer is not None:
            answer.timer.cancel()
        if not mine.answers:
            del self._callers[caller]


def _late(size: int, within_s: float) -> LimitExceededError:
    return _unread(f"the caller has not taken an answer of {size} bytes in {within_s:g} s; its connection is closed")


def _crowded(caller: str) -> LimitExceededError:
    return _unread(f"{caller} leaves too many answers unread; the connection of the oldest is closed")


def _unread(message: str) -> LimitExceededError:
    return LimitExceededError(UNREAD, message, "read the answer, or cancel the call", retry_after_s=1.0)
