"""A bucket that projects share: no more in all than one bucket gives, and something for each."""

from __future__ import annotations

import random

import pytest

from atoll.server.rpc.buckets import Bucket
from atoll.server.rpc.fair_bucket import ACTIVE_S, FairBucket


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
