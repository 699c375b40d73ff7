from __future__ import annotations

import random
from collections import Counter

from atoll.client._connection.backoff import Backoff


class Highest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        del a
        return b


def test_ceilings_double_up_to_the_cap() -> None:
    backoff = Backoff(0.5, 10.0, Highest())
    assert [backoff.next_s() for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    backoff.reset()
    assert backoff.next_s() == 0.5


def test_a_spread_that_was_asked_for_holds_from_the_first_try() -> None:
    backoff = Backoff(0.5, 10.0, Highest())
    assert [backoff.next_s(3.0) for _ in range(4)] == [3.0, 4.5, 4.5, 4.0]
    assert Backoff(0.5, 1.0, Highest()).next_s(40.0) == 40.0


def test_a_fleet_returns_evenly_after_an_outage_of_many_tries() -> None:
    """10,000 clients try until an outage of 300 s ends: no second has more than 1.3 times the intended rate."""
    chance, spread_s, outage_s, count = random.Random(3), 40.0, 300.0, 10_000
    seconds: Counter[int] = Counter()
    for _ in range(count):
        backoff, now = Backoff(0.5, 5.0, chance), 0.0
        while now < outage_s:
            now += backoff.next_s(spread_s)
        seconds[int(now - outage_s)] += 1
    assert max(seconds.values()) <= 1.3 * count / spread_s
    assert max(seconds) < 1.5 * spread_s


def test_jitter_is_full() -> None:
    backoff = Backoff(1.0, 1.0, random.Random(1))
    delays = [backoff.next_s() for _ in range(1000)]
    assert min(delays) < 0.05
    assert max(delays) > 0.95
    assert 0.45 < sum(delays) / 1000 < 0.55


def test_it_never_overflows() -> None:
    backoff = Backoff(1.0, 30.0, failures=10**6)
    assert backoff.next_s() <= 30.0
