from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.server.aggregation import (
    Accumulator,
    AggregationError,
    DuplicateUpdateError,
    MergedSum,
    PartialSumError,
    RejectedUpdateError,
    grid_for,
    mean_block,
)
from atoll.server.aggregation.partial import BLOCK
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding
from tests.patience import WAIT_S
from tests.properties import examples
from tests.server.aggregation.updates import (
    Piece,
    Update,
    cohorts,
    exact_fold,
    indices,
    piece,
    run_cuts,
    total_examples,
    update_of,
)

CALM = settings(max_examples=examples(60))


def accumulator_of(updates: Sequence[Update], total: int) -> Accumulator:
    made = Accumulator(updates[0].values.size, grid_for(total))
    for update in updates:
        update.fold_into(made)
    return made


def sums_of(accumulator: Accumulator) -> npt.NDArray[np.int64]:
    return accumulator.sum_block(0, accumulator.size).copy()


def ones(name: str, size: int = 1000, value: float = 1.0) -> Update:
    return update_of(name, 1, np.full(size, value), run_cuts(size, 300, [Encoding.FLOAT32]))


@CALM
@given(cohorts())
def test_the_mean_is_within_half_the_resolution_of_a_float64_mean(updates: list[Update]) -> None:
    made = accumulator_of(updates, total_examples(updates))
    expected = sum(update.values * update.examples for update in updates) / total_examples(updates)
    assert np.abs(made.mean_block(0, made.size) - expected).max() <= made.grid.resolution * 0.5 + 1e-14


@CALM
@given(cohorts(max_updates=3))
def test_the_sum_is_that_of_pythons_integers(updates: list[Update]) -> None:
    made = accumulator_of(updates, total_examples(updates))
    weights = [made.grid.weight_of(update.examples) for update in updates]
    folds = [exact_fold(one.values.tolist(), weight, made.grid) for one, weight in zip(updates, weights, strict=True)]
    assert sums_of(made).tolist() == [sum(column) for column in zip(*folds, strict=True)]
    assert made.total_weight == sum(weights)


@CALM
@given(cohorts(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_any_order_and_any_split_give_the_same_bits(updates: list[Update], rng: random.Random, parts: int) -> None:
    total = total_examples(updates)
    reference = accumulator_of(updates, total)
    shuffled = rng.sample(updates, len(updates))
    accumulators = [Accumulator(reference.size, grid_for(total)) for _ in range(parts)]
    for update in shuffled:
        update.fold_into(rng.choice(accumulators))
    merged = MergedSum(accumulators)
    assert np.array_equal(merged.sum_block(0, merged.size), sums_of(reference))
    assert (merged.total_weight, merged.updates) == (reference.total_weight, reference.updates)
    means = mean_block(merged, 0, merged.size)
    assert means.tobytes() == reference.mean_block(0, reference.size).tobytes()


def test_merging_walks_through_more_than_one_block() -> None:
    size = 2 * BLOCK + 17
    one, two = (accumulator_of([ones(name, size)], 2) for name in "ab")
    merged = MergedSum([one, two])
    assert (merged.sum_block(0, size) == 2 * sums_of(two)).all()
    assert mean_block(merged, 0, size).tolist() == [1.0] * size


def _poisoned(pieces: Sequence[Piece]) -> Iterator[Piece]:
    yield from pieces[:2]
    raise OSError("the spool's disk went away")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 32.0 + 2.0**-18, -100.0])
@pytest.mark.parametrize("encoding", [Encoding.FLOAT32, Encoding.FLOAT64])
@pytest.mark.parametrize("at", [0, 299, 300, 999])
def test_a_rejected_update_leaves_the_sum_untouched(bad: float, encoding: Encoding, at: int) -> None:
    made = accumulator_of([ones("good")], 3)
    before = (sums_of(made).tobytes(), made.total_weight, made.updates)
    values = np.random.default_rng(1).standard_normal(1000)
    values[at] = bad
    with pytest.raises(RejectedUpdateError) as caught:
        update_of("bad", 1, values, run_cuts(1000, 300, [encoding])).fold_into(made)
    assert (sums_of(made).tobytes(), made.total_weight, made.updates) == before
    assert f"from element {at // 300 * 300}" in str(caught.value)
    assert "clip the update" in caught.value.detail.remedy
    ones("good again").fold_into(made)
    assert made.mean_block(0, 1).tolist() == [1.0]


def test_the_bound_itself_is_admissible() -> None:
    made = accumulator_of([ones("high", value=32.0), ones("low", value=-32.0)], 2)
    assert not sums_of(made).any()


class _Again:
    """The same chunks each time; the last one never comes."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.asked = 0

    def __iter__(self) -> Iterator[Piece]:
        self.asked += 1
        return iter(_poisoned(self.pieces))


def test_chunks_that_can_be_had_again_are_taken_back_too() -> None:
    made = accumulator_of([ones("good")], 3)
    before, chunks = sums_of(made), _Again(ones("late").pieces)
    with pytest.raises(OSError, match="disk went away"):
        made.fold("late", 1, chunks, again=True)
    assert np.array_equal(sums_of(made), before)
    assert chunks.asked == 2


def test_chunks_that_fail_to_come_are_taken_back() -> None:
    made = accumulator_of([ones("good")], 3)
    before = sums_of(made)
    update = ones("late")
    with pytest.raises(OSError, match="disk went away"):
        made.fold("late", 1, _poisoned(update.pieces))
    with pytest.raises(AggregationError, match="900 elements, the sum 1000"):
        made.fold("late", 1, update.pieces[:3])
    with pytest.raises(AggregationError, match="the model ends"):
        made.fold("late", 1, ones("long", 1200).pieces)
    assert np.array_equal(sums_of(made), before)
    assert made.updates == {"good"}


def test_an_update_counts_once() -> None:
    made = accumulator_of([ones("a")], 4)
    with pytest.raises(DuplicateUpdateError):
        ones("a").fold_into(made)
    other = accumulator_of([ones("a"), ones("b")], 4)
    with pytest.raises(DuplicateUpdateError, match="'a'"):
        MergedSum([made, other])
    assert made.mean_block(0, 1).tolist() == [1.0]


def test_weights_beyond_the_grid_are_refused() -> None:
    made = Accumulator(1000, grid_for(1))
    for weight in (0, -1, made.grid.max_total_weight + 1):
        with pytest.raises(AggregationError, match="admits 1 to"):
            made.fold("a", weight, ones("a").pieces)
    made.fold("a", made.grid.max_total_weight, ones("a").pieces)
    with pytest.raises(AggregationError, match="admits 1 to 0 more"):
        made.fold("b", 1, ones("b").pieces)
    other = Accumulator(1000, grid_for(1))
    other.fold("b", 1, ones("b").pieces)
    with pytest.raises(PartialSumError, match="admits"):
        MergedSum([made, other])


def test_partial_sums_of_another_round_do_not_merge() -> None:
    made = accumulator_of([ones("a")], 4)
    for other in (accumulator_of([ones("b", 999)], 4), accumulator_of([ones("b")], 2**30)):
        with pytest.raises(PartialSumError, match="different rounds or models"):
            MergedSum([made, other])
    with pytest.raises(PartialSumError, match="no partial sums"):
        MergedSum([])


def test_an_empty_sum_has_no_mean_and_a_model_has_elements() -> None:
    with pytest.raises(AggregationError, match="no update"):
        Accumulator(10, grid_for(1)).mean_block(0, 10)
    with pytest.raises(AggregationError, match="at least 1 element"):
        Accumulator(0, grid_for(1))
    with pytest.raises(AggregationError, match="outside"):
        accumulator_of([ones("a")], 1).mean_block(10, 1001)


def test_reset_keeps_the_memory() -> None:
    made = accumulator_of([ones("a")], 4)
    address = made.sum_block(0, 1).ctypes.data
    made.reset(grid_for(9))
    assert made.sum_block(0, 1).ctypes.data == address
    assert (made.total_weight, made.updates, made.grid) == (0, frozenset(), grid_for(9))
    ones("a").fold_into(made)
    assert made.mean_block(0, 1000).tolist() == [1.0] * 1000


def test_a_reset_may_be_for_fewer_elements_and_for_more_again() -> None:
    made = accumulator_of([ones("a", value=3.0)], 4)
    made.reset(grid_for(4), 10, 40)
    assert (made.size, made.first, made.capacity) == (40, 10, 1000)
    assert not sums_of(made).any()
    made.reset(grid_for(4), size=1000)
    assert not sums_of(made).any()
    for size in (0, 1001):
        with pytest.raises(AggregationError, match="holds 1 to 1000"):
            made.reset(grid_for(4), size=size)


def test_nothing_of_an_earlier_round_is_left_after_a_reset() -> None:
    made = accumulator_of([ones("a", value=3.0)], 4)
    made.reset(grid_for(4))
    assert not sums_of(made).any()
    made = accumulator_of([ones("a", value=3.0)], 4)
    made.reset(grid_for(4))
    ones("b").fold_into(made)
    assert made.mean_block(0, 1000).tolist() == [1.0] * 1000


@pytest.mark.parametrize("reset", [False, True])
def test_a_first_update_that_is_refused_leaves_nothing(reset: bool) -> None:
    made = Accumulator(1000, grid_for(3))
    if reset:
        ones("earlier").fold_into(made)
        made.reset(grid_for(3))
    first, second, third, fourth = ones("late").pieces
    with pytest.raises(OSError, match="disk went away"):
        made.fold("late", 1, _poisoned((first, second, third, fourth)))
    assert not sums_of(made).any()
    with pytest.raises(AggregationError, match="twice"):
        made.fold("twice", 1, (first, second, second, fourth))
    with pytest.raises(RejectedUpdateError):
        ones("high", value=100.0).fold_into(made)
    assert not made.updates
    ones("good").fold_into(made)
    ones("next").fold_into(made)
    assert made.mean_block(0, 1000).tolist() == [1.0] * 1000


def test_blocks_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Accumulator(10, grid_for(1)).sum_block(0, 10)[0] = 1


def test_folds_take_turns() -> None:
    """A second fold of an update waits for the first to end, and is then refused."""
    made, update = Accumulator(1000, grid_for(4)), ones("a")
    begun, gate, refused = threading.Event(), threading.Event(), threading.Event()

    def gated() -> Iterator[Piece]:
        yield update.pieces[0]
        begun.set()
        assert gate.wait(timeout=WAIT_S)
        yield from update.pieces[1:]

    def again() -> None:
        with pytest.raises(DuplicateUpdateError):
            made.fold("a", 1, update.pieces)
        refused.set()

    first = threading.Thread(target=made.fold, args=("a", 1, gated()))
    first.start()
    assert begun.wait(timeout=WAIT_S)
    second = threading.Thread(target=again)
    second.start()
    assert not refused.wait(timeout=0.2)
    gate.set()
    for thread in (first, second):
        thread.join(timeout=WAIT_S)
    assert refused.is_set()
    assert made.mean_block(0, 1000).tolist() == [1.0] * 1000


def test_a_sum_over_some_elements_takes_these_and_no_others() -> None:
    first, size = 40, 60
    values = np.linspace(-1, 1, 100)
    grid = grid_for(3)
    made = Accumulator(size, grid, first)
    cuts = [(ElementRange.run(first, 25), Encoding.FLOAT32), (ElementRange.run(first + 25, 35), Encoding.FLOAT64)]
    for name in ("first", "next"):
        pieces = [piece(target, values[indices(target)], encoding) for target, encoding in cuts]
        made.fold(name, grid.weight_of(1), pieces)
    sent = np.concatenate([values[40:65].astype(np.float32).astype(np.float64), values[65:]])
    assert made.sum_block(0, size).tolist() == [2 * one for one in exact_fold(sent.tolist(), grid.weight_of(1), grid)]
    before = made.sum_block(0, size).copy()
    for wrong in (ElementRange.run(first - 1, size), ElementRange.run(first + 1, size)):
        for accumulator in (made, Accumulator(size, grid, first)):
            with pytest.raises(AggregationError):
                accumulator.fold("wrong", grid.weight_of(1), [piece(wrong, np.ones(size), Encoding.FLOAT32)])
    assert (made.sum_block(0, size) == before).all()
