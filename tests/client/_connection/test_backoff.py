from __future__ import annotations

import random

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
    assert [backoff.next_s(3.0) for _ in range(4)] == [3.0, 3.0, 3.0, 4.0]
    assert Backoff(0.5, 1.0, Highest()).next_s(40.0) == 40.0


def test_jitter_is_full() -> None:
    backoff = Backoff(1.0, 1.0, random.Random(1))
    delays = [backoff.next_s() for _ in range(1000)]
    assert min(delays) < 0.05
    assert max(delays) > 0.95
    assert 0.45 < sum(delays) / 1000 < 0.55


def test_it_never_overflows() -> None:
    backoff = Backoff(1.0, 30.0, failures=10**6)
    assert backoff.next_s() <= 30.0
