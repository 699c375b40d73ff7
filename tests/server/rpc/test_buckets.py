from hypothesis import given
from hypothesis import strategies as st

from atoll.server.rpc.buckets import Bucket, RecentValues


def test_a_full_bucket_allows_a_burst_of_its_size() -> None:
    bucket = Bucket(3.0, 1.0, now=0.0)
    assert [bucket.take(1.0, 0.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take(1.0, 0.0) > 0.0


def test_a_bucket_fills_up_to_its_size() -> None:
    bucket = Bucket(2.0, 1.0, now=0.0)
    for _ in range(2):
        bucket.take(1.0, 0.0)
    assert bucket.take(1.0, 1.0) == 0.0
    assert [bool(bucket.take(1.0, 1000.0)) for _ in range(3)] == [False, False, True]


def test_a_debt_is_paid_first() -> None:
    bucket = Bucket(10.0, 2.0, now=0.0)
    assert bucket.take(30.0, 0.0) == 0.0
    wait_s = bucket.take(1.0, 0.0)
    assert wait_s == (20.0 + 1.0) / 2.0
    assert bucket.empty(wait_s - 0.1) > 0.0
    assert bucket.take(1.0, wait_s) == 0.0


def test_what_is_given_back_may_be_taken_again() -> None:
    bucket = Bucket(1.0, 0.001, now=0.0)
    assert bucket.take(1.0, 0.0) == 0.0
    bucket.give_back(1.0)
    assert bucket.take(1.0, 0.0) == 0.0
    assert bucket.empty(0.0) > 0.0


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.5, 3.0)), max_size=200))
def test_in_any_time_no_more_than_its_capacity_its_rate_and_one_take(takes: list[tuple[float, float]]) -> None:
    bucket, now, taken = Bucket(5.0, 2.0, now=0.0), 0.0, 0.0
    for pause, amount in takes:
        now += pause
        if not bucket.take(amount, now):
            taken += amount
    assert taken <= 5.0 + 2.0 * now + 3.0 + 1e-6


def test_the_keys_seen_longest_ago_go_first() -> None:
    kept: RecentValues[str, list[int]] = RecentValues(list, 2)
    kept["a"].append(1)
    kept["b"].append(2)
    assert kept["a"] == [1]
    assert kept["c"] == []
    assert len(kept) == 2
    assert kept["a"] == [1]
    assert kept["b"] == []
