"""A bucket that projects share: no more in all than one bucket gives, and something for each."""

from __future__ import annotations

import random

import pytest

from atoll.server.rpc import fair_bucket
from atoll.server.rpc.buckets import Bucket
from atoll.server.rpc.fair_bucket import ACTIVE_S, SETTLE_S, FairBucket


def taken(bucket: FairBucket, who: str, tries: int, now: float) -> int:
    return sum(bucket.take(who, now) for _ in range(tries))


def test_alone_it_is_one_bucket() -> None:
    shared, plain = FairBucket(10.0, 5.0, 0.0), Bucket(10.0, 5.0, 0.0)
    chance, now = random.Random(1), 0.0
    for _ in range(1000):
        now += chance.expovariate(6.0)
        assert shared.take("a", now) == (not plain.take(1.0, now))


def test_each_has_a_part_however_many_another_takes() -> None:
    bucket = FairBucket(10.0, 10.0, 0.0)
    assert taken(bucket, "a", 100, 0.0) == 10
    assert taken(bucket, "b", 1, 0.0) == 0
    for second in range(1, 20):
        assert taken(bucket, "a", 100, float(second)) == 5
        assert taken(bucket, "b", 100, float(second)) == 5


def test_what_one_leaves_the_other_takes() -> None:
    bucket = FairBucket(10.0, 10.0, 0.0)
    assert taken(bucket, "b", 1, 0.0) == 1
    assert taken(bucket, "a", 100, 1.0) == 5, "all but what is kept for b, which was here lately"
    found = [taken(bucket, "a", 100, 1.0 + step / 10) for step in range(1, 31)]
    assert sum(found) in (29, 30), "the whole rate"
    later = 4.0 + ACTIVE_S
    assert taken(bucket, "a", 100, later) == 10, "nothing is kept for b any more"


@pytest.mark.parametrize("count", [2, 7, 30])
def test_all_together_take_no_more_than_one_bucket_gives(count: int) -> None:
    """Also with more of them than the bucket holds units, when no part holds a whole one."""
    bucket, chance, now, total = FairBucket(10.0, 10.0, 0.0), random.Random(count), 0.0, 0
    for _ in range(5000):
        now += chance.expovariate(100.0)
        total += bucket.take(str(chance.randrange(count)), now)
        assert total <= 10.0 + 10.0 * now
    assert total >= 0.9 * 10.0 * now, "and it is used"


def test_many_that_ask_all_the_time_get_equal_parts() -> None:
    """300 takers, each with ten times its part: all get the same, and together the whole rate."""
    bucket, per_taker = FairBucket(2400.0, 600.0, 0.0), dict.fromkeys(map(str, range(300)), 0)
    for who in per_taker:
        taken(bucket, who, 8, 0.0)
    for step in range(1, 1001):
        now = step / 50
        for who in random.Random(step).sample(sorted(per_taker), 120):
            per_taker[who] += taken(bucket, who, 1, now)
    assert sum(per_taker.values()) >= 0.95 * 600.0 * 20.0
    assert max(per_taker.values()) - min(per_taker.values()) <= 10, "of 40 each"


@pytest.mark.parametrize("calls_per_s", [200, 5000])
def test_work_of_a_call_does_not_grow_with_the_number_of_takers(
    calls_per_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,000 takers a part is visited once per call, and all parts once in ``SETTLE_S`` or in as many calls."""
    visits = 0

    class Counted(fair_bucket._Part):
        def gain(self, capacity: float, per_s: float, now: float) -> None:
            nonlocal visits
            visits += 1
            super().gain(capacity, per_s, now)

    monkeypatch.setattr(fair_bucket, "_Part", Counted)
    bucket, calls = FairBucket(2000.0, 1000.0, 0.0), 3000
    for call in range(calls):
        bucket.take(str(call % 1000), call / calls_per_s)
    assert visits <= 2 * calls + 1000 * calls / calls_per_s / SETTLE_S
    assert len(bucket._parts) == 1000, "none was idle"
