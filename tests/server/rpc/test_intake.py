from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from atoll.server.errors import LimitExceededError
from atoll.server.rpc.intake import Intake


class Messages:
    """Messages that arrive when they are told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.whole: dict[str, asyncio.Event] = {}

    def of(self, intake: Intake, caller: str, name: str, within_s: float | None = None) -> asyncio.Task[str]:
        whole = self.whole[name] = asyncio.Event()

        async def read() -> str:
            self.begun.append(name)
            await whole.wait()
            return name

        return asyncio.ensure_future(intake.receive(caller, read, within_s))

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def code_of(task: Awaitable[str]) -> str:
    with pytest.raises(LimitExceededError) as caught:
        await task
    assert caught.value.detail.retry_after_s
    return caught.value.detail.code


async def test_a_callers_messages_beyond_its_places_wait_in_order() -> None:
    intake, messages = Intake(2, 10), Messages()
    tasks = [messages.of(intake, "a", str(number)) for number in range(4)]
    other = messages.of(intake, "b", "other")
    await messages.settled()
    assert messages.begun == ["0", "1", "other"]
    messages.whole["1"].set()
    await messages.settled()
    assert messages.begun == ["0", "1", "other", "2"]
    for event in messages.whole.values():
        event.set()
    assert await asyncio.gather(*tasks, other) == ["0", "1", "2", "3", "other"]


async def test_a_message_that_is_not_whole_in_time_is_broken_off_and_its_place_is_free() -> None:
    intake, messages = Intake(1, 1), Messages()
    assert await code_of(messages.of(intake, "a", "slow", within_s=0.01)) == "request.slow"
    following = messages.of(intake, "a", "following")
    messages.whole["following"].set()
    assert await following == "following"


async def test_waiting_for_a_place_counts_too() -> None:
    intake, messages = Intake(1, 1), Messages()
    first = messages.of(intake, "a", "first")
    assert await code_of(messages.of(intake, "a", "second", within_s=0.01)) == "request.slow"
    assert messages.begun == ["first"]
    messages.whole["first"].set()
    assert await first == "first"


async def test_the_caller_with_most_loses_its_oldest_to_one_that_has_fewer() -> None:
    intake, messages = Intake(3, 4), Messages()
    greedy = [messages.of(intake, "greedy", f"greedy {number}") for number in range(3)]
    modest = messages.of(intake, "modest", "modest")
    await messages.settled()
    newcomer = messages.of(intake, "new", "new")
    assert await code_of(greedy[0]) == "request.crowded"
    await messages.settled()
    assert messages.begun[-1] == "new"
    for event in messages.whole.values():
        event.set()
    assert await asyncio.gather(*greedy[1:], modest, newcomer) == ["greedy 1", "greedy 2", "modest", "new"]


async def test_callers_that_have_no_more_than_a_newcomer_would_lose_nothing() -> None:
    intake, messages = Intake(3, 2), Messages()
    tasks = [messages.of(intake, name, name) for name in ("a", "b", "new")]
    await messages.settled()
    assert messages.begun == ["a", "b"]
    messages.whole["a"].set()
    await messages.settled()
    assert messages.begun == ["a", "b", "new"]
    for event in messages.whole.values():
        event.set()
    assert await asyncio.gather(*tasks) == ["a", "b", "new"]


async def test_a_task_that_is_cancelled_is_cancelled_and_its_place_is_free() -> None:
    intake, messages = Intake(1, 1), Messages()
    first, second = messages.of(intake, "a", "first"), messages.of(intake, "a", "second")
    await messages.settled()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    messages.whole["second"].set()
    assert await second == "second"


async def test_what_is_cancelled_and_broken_off_at_once_is_cancelled() -> None:
    intake, messages = Intake(2, 2), Messages()
    oldest, other = messages.of(intake, "greedy", "oldest"), messages.of(intake, "greedy", "other")
    await messages.settled()
    newcomer = messages.of(intake, "new", "new")
    asyncio.get_running_loop().call_soon(oldest.cancel)  # after the newcomer, before the oldest hears of either
    with pytest.raises(asyncio.CancelledError):
        await oldest
    for event in messages.whole.values():
        event.set()
    assert (await other, await newcomer) == ("other", "new")


async def test_nothing_is_kept_of_callers_without_messages() -> None:
    intake, messages = Intake(1, 1), Messages()
    task = messages.of(intake, "a", "one")
    await messages.settled()
    assert len(intake) == 1
    messages.whole["one"].set()
    await task
    assert len(intake) == 0
