from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable

import pytest

from atoll.server.errors import LimitExceededError
from atoll.server.rpc.intake import Intake
from tests.patience import WAIT_S


class Messages:
    """Messages that arrive when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.over: set[str] = set()
        self.whole: dict[str, asyncio.Event] = {}

    def of(self, intake: Intake, caller: str, name: str, within_s: float | None = None) -> asyncio.Task[str]:
        whole = self.whole[name] = asyncio.Event()

        async def read() -> str:
            self.begun.append(name)
            try:
                await whole.wait()
            finally:
                self.over.add(name)
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


@pytest.mark.parametrize(
    ("burst", "shares"),
    [
        ("b" * 8, {"a": 4, "b": 4}),
        ("b" * 3, {"a": 5, "b": 3}),
        ("b" * 8 + "c" * 8, {"a": 2, "b": 3, "c": 3}),
        ("bc" * 8, {"a": 3, "b": 3, "c": 2}),
        ("b" * 8 + "c", {"a": 3, "b": 4, "c": 1}),
    ],
)
async def test_a_burst_takes_its_fair_share_and_no_more(burst: str, shares: dict[str, int]) -> None:
    """All of it arrives before the first message that is broken off for it has ended."""
    intake, messages = Intake(8, 8), Messages()
    held = [messages.of(intake, "a", f"a {number}") for number in range(8)]
    await messages.settled()
    tasks = [messages.of(intake, caller, f"{caller} {number}") for number, caller in enumerate(burst)]
    lost = 8 - shares["a"]
    assert [await code_of(task) for task in held[:lost]] == ["request.crowded"] * lost
    await messages.settled()
    assert Counter(name[0] for name in messages.begun if name not in messages.over) == shares
    for event in messages.whole.values():
        event.set()
    assert len(await asyncio.gather(*held[lost:], *tasks)) == shares["a"] + len(burst)  # no other is broken off


async def test_a_place_broken_off_for_a_message_that_is_cancelled_goes_to_another() -> None:
    intake, messages = Intake(4, 4), Messages()
    held = [messages.of(intake, "a", f"a {number}") for number in range(4)]
    await messages.settled()
    cancelled = messages.of(intake, "b", "b cancelled")
    asyncio.get_running_loop().call_soon(cancelled.cancel)  # after it asked, before the place is free
    assert await code_of(held[0]) == "request.crowded"
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    following = [messages.of(intake, "b", f"b {number}") for number in range(2)]
    assert await code_of(held[1]) == "request.crowded"
    await messages.settled()
    assert messages.begun[4:] == ["b 0", "b 1"]
    for event in messages.whole.values():
        event.set()
    assert await asyncio.gather(*held[2:], *following) == ["a 2", "a 3", "b 0", "b 1"]


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


async def test_a_free_place_goes_to_the_waiting_caller_that_has_fewest() -> None:
    """If the first waiting caller got it, colluding callers could keep others out."""
    intake, messages = Intake(3, 4), Messages()
    together = [messages.of(intake, name, f"{name} {number}") for number in range(3) for name in ("a", "b")]
    await messages.settled()
    assert messages.begun == ["a 0", "b 0", "a 1", "b 1"]  # the third of each waits
    other = messages.of(intake, "other", "other")
    assert await code_of(together[0]) == "request.crowded"
    await messages.settled()
    assert messages.begun[4:] == ["other"]
    messages.whole["b 0"].set()
    await messages.settled()
    assert messages.begun[5:] == ["a 2"]  # a and b have one each, and a waits for longer
    for event in messages.whole.values():
        event.set()
    assert await asyncio.gather(*together[1:], other) == ["b 0", "a 1", "b 1", "a 2", "b 2", "other"]
    assert len(intake) == 0


async def test_callers_that_wait_with_as_many_are_served_in_turn() -> None:
    intake, messages = Intake(4, 1), Messages()
    tasks = [messages.of(intake, name, f"{name} {number}") for name in "abc" for number in range(3)]
    await messages.settled()
    for done in range(len(tasks)):
        assert len(messages.begun) == done + 1
        messages.whole[messages.begun[-1]].set()
        await messages.settled()
    assert messages.begun == ["a 0", "b 0", "c 0", "a 1", "b 1", "c 1", "a 2", "b 2", "c 2"]
    assert await asyncio.gather(*tasks) == [f"{name} {number}" for name in "abc" for number in range(3)]


async def test_a_place_is_not_lost_with_a_message_that_is_given_it_and_cancelled_at_once() -> None:
    intake, messages = Intake(1, 1), Messages()
    first, second, third = (messages.of(intake, name, name) for name in "abc")
    await messages.settled()
    messages.whole["a"].set()
    await first
    second.cancel()  # the place is its own by now, or about to be
    with pytest.raises(asyncio.CancelledError):
        await second
    messages.whole["c"].set()
    assert await asyncio.wait_for(third, WAIT_S) == "c"
    assert len(intake) == 0


async def test_while_a_caller_waits_none_has_more_than_one_place_above_it() -> None:
    """Bursts of any size arrive in any order; messages end or are cancelled at any time in between."""
    messages, source = Messages(), random.Random(2)
    intake = Intake(8, 12)
    tasks: list[asyncio.Task[str]] = []
    waited = 0
    for _ in range(200):
        for _ in range(source.randrange(12)):
            tasks.append(messages.of(intake, source.choice("aabcd"), str(len(tasks))))
            ending = source.randrange(4)
            if ending == 0:
                source.choice(tasks).cancel()
            elif ending == 1 and messages.begun:
                messages.whole[source.choice(messages.begun)].set()
            for _ in range(source.randrange(3)):
                await asyncio.sleep(0)
        await messages.settled()
        most, fewest = intake._holding.with_most(), intake._waiting.with_fewest()
        if most is not None and fewest is not None:
            waited += 1
            assert len(most.arriving) <= len(fewest.arriving) + 1
    assert waited > 20
    for event in messages.whole.values():
        event.set()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_no_slot_is_lost_however_messages_end() -> None:
    """After messages are cancelled, broken off or completed in any order, all slots are free again."""
    most, messages, source = 5, Messages(), random.Random(1)
    intake = Intake(3, most)
    tasks: list[asyncio.Task[str]] = []
    for number in range(400):
        tasks.append(messages.of(intake, source.choice("abcd"), str(number)))
        ending = source.randrange(4)
        if ending == 0:
            source.choice(tasks).cancel()
        elif ending == 1:
            messages.whole[source.choice(messages.begun or ["0"])].set()
        for _ in range(source.randrange(3)):
            await asyncio.sleep(0)
        arriving = [name for name in messages.begun if name not in messages.over]
        assert len(arriving) <= most
    for event in messages.whole.values():
        event.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (len(intake), intake._free) == (0, most)
    assert intake._waiting.with_fewest() is intake._holding.with_most() is None
