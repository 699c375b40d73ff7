"""Limits on unread answers: their bytes and their time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from atoll.server.config.limits import MIB, Limits
from atoll.server.errors import LimitExceededError
from atoll.server.rpc.answers import Answers


class Port:
    """Answers sent over named connections, and their outcomes."""

    def __init__(self, limits: Limits) -> None:
        self.answers = Answers(limits)
        self.closed: dict[str, LimitExceededError] = {}
        self._ended: dict[str, Callable[[Any], None]] = {}

    def answer(self, caller: str, size: int, connection: str) -> None:
        port = self

        class Call:
            def add_done_callback(self, ended: Callable[[Any], None]) -> None:
                port._ended[connection] = ended

        def give_up(error: LimitExceededError) -> None:
            self.closed[connection] = error

        self.answers.expect(caller, size, Call(), give_up)

    def take(self, connection: str) -> None:
        """Note that the answer was taken, or its connection has ended."""
        self._ended[connection](None)


async def test_a_caller_that_leaves_too_much_unread_loses_its_oldest() -> None:
    port = Port(Limits(unread_mib_per_caller=1))
    for name in ("a", "b"):
        port.answer("alice", MIB // 2, name)
    port.answer("bob", MIB, "c")
    assert not port.closed
    port.answer("alice", 1, "d")
    assert list(port.closed) == ["a"]
    assert "alice leaves too many answers unread" in str(port.closed["a"])
    assert len(port.answers) == MIB // 2 + 1 + MIB
    port.take("a")  # gRPC says so once its connection is closed
    assert len(port.answers) == MIB // 2 + 1 + MIB


async def test_answers_that_are_taken_do_not_count() -> None:
    port = Port(Limits(unread_mib_per_caller=1))
    for name in map(str, range(100)):
        port.answer("alice", MIB // 2, name)
        port.take(name)
    assert not port.closed
    assert len(port.answers) == 0


async def test_one_answer_may_be_larger_than_all() -> None:
    port = Port(Limits(unread_mib_per_caller=1, unread_mib=2))
    port.answer("alice", 5 * MIB, "a")
    assert not port.closed
    port.answer("bob", 1, "b")
    assert list(port.closed) == ["a"]


async def test_of_all_callers_the_one_with_most_loses_its_oldest() -> None:
    port = Port(Limits(unread_mib_per_caller=3, unread_mib=4))
    for name in ("a", "b", "c"):
        port.answer("alice", MIB, name)
    port.answer("bob", MIB, "d")
    port.answer("carol", MIB, "e")
    assert list(port.closed) == ["a"]
    port.answer("dave", MIB, "f")
    assert list(port.closed) == ["a", "b"]


async def test_a_large_answer_has_more_time() -> None:
    limits = Limits(unread_s=1.0)
    port, loop = Port(limits), asyncio.get_running_loop()
    timers: list[tuple[float, Callable[[], None]]] = []

    def later(delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timers.append((delay, callback))
        return asyncio.TimerHandle(loop.time() + delay, callback, (), loop)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "call_later", later)
        port.answer("alice", 10, "small")
        port.answer("alice", 4 * limits.message_bytes, "large")
    assert [delay for delay, _ in timers] == [1.0, 4.0]
    timers[1][1]()
    assert "has not taken an answer of 17039360 bytes in 4 s" in str(port.closed["large"])
    assert len(port.answers) == 10


async def test_an_answer_that_is_taken_in_time_is_not_given_up() -> None:
    port = Port(Limits(unread_s=1.0))
    port.answer("alice", 10, "a")
    port.take("a")
    assert not [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
