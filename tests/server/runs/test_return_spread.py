"""A population that loses its connections returns at the server's rate, regardless of when each one joined."""

import asyncio
from collections import Counter

import pytest

from atoll.client._connection.backoff import Backoff
from atoll.client.limits import Limits
from atoll.server.runs import sessions as module
from atoll.server.runs.instructions import serialised
from atoll.server.runs.return_spread import LEAST, RETURNS_PER_S, SHRINK_AFTER_S, STEP, ReturnSpread, return_spread_s
from atoll.server.runs.session import OUTBOX_MESSAGES, Introduction, Session
from atoll.server.runs.sessions import Sessions
from atoll.wire.v1 import participation_pb2

HELLO = Introduction(10, frozenset(), can_evaluate=True)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Idle:
    """A participant at the other end, which keeps the last spread that it received."""

    def __init__(self, sessions: Sessions, number: int) -> None:
        self.session: Session = sessions.connect(f"p{number}", HELLO, lambda: None)
        self.spread_s = sessions.return_spread_s  # its welcome
        self.hints = 0
        self.backoff = Backoff(Limits().backoff_base_s, Limits().backoff_cap_s)
        self.backoff.random.seed(number)

    def read(self) -> None:
        while self.session.outbox:
            instruction = self.session.outbox.take()
            assert instruction is not None, "its stream was closed"
            message = participation_pb2.CheckInResponse.FromString(serialised(instruction))
            self.spread_s = message.return_spread.return_spread_s
            self.hints += 1

    def returns_after_s(self) -> float:
        return self.backoff.next_s(self.spread_s)


async def joined(sessions: Sessions, count: int) -> list[Idle]:
    """Connect this many, one after another, and deliver the spread to all."""
    population = []
    for number in range(count):
        population.append(Idle(sessions, number))
        await asyncio.sleep(0)
    for _ in range(count // module.SPREADS_AT_ONCE + 1):
        await asyncio.sleep(0)
    for idle in population:
        idle.read()
    return population


@pytest.mark.parametrize("count", [40, 400, 10_000])
async def test_early_participants_get_the_spread_of_the_grown_population(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Welcomed to a small population and not updated, 1,149 of 10,000 came back in the first second."""
    monkeypatch.setattr(module, "SPREADS_EVERY_S", 0.0)
    population = await joined(Sessions(), count)
    seconds = Counter(int(idle.returns_after_s()) for idle in population)
    assert max(seconds.values()) <= max(1.2 * RETURNS_PER_S, LEAST)
    assert max(seconds) <= STEP * return_spread_s(count) + 1.0, "nor do they take longer than they must"


async def test_a_growing_population_is_sent_few_new_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPREADS_EVERY_S", 0.0)
    population = await joined(Sessions(), 10_000)
    assert sum(idle.hints for idle in population) <= 10_000 / (STEP - 1) * STEP
    assert max(idle.hints for idle in population) < OUTBOX_MESSAGES // 2


async def test_a_new_spread_is_sent_to_a_few_participants_at_a_time() -> None:
    sessions = Sessions()
    population = [Idle(sessions, number) for number in range(400)]
    await asyncio.sleep(0)
    assert sum(len(idle.session.outbox) for idle in population) == module.SPREADS_AT_ONCE


def test_a_population_that_shrank_long_ago_gets_a_shorter_spread() -> None:
    clock = Clock()
    spread = ReturnSpread(clock)
    assert spread.adjust(9_000)
    assert not spread.adjust(100)
    clock.now += SHRINK_AFTER_S - 1
    assert not spread.adjust(100), "they may be about to come back"
    assert spread.seconds == return_spread_s(9_000)
    clock.now += 1
    assert spread.adjust(100)
    assert spread.seconds == return_spread_s(150)


def test_one_that_came_back_in_time_keeps_its_spread() -> None:
    clock = Clock()
    spread = ReturnSpread(clock)
    spread.adjust(9_000)
    for connected in (100, 9_000, 100):
        assert not spread.adjust(connected)
        clock.now += SHRINK_AFTER_S - 1
    assert spread.seconds == return_spread_s(9_000)
