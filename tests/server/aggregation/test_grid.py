from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.aggregation import Grid, GridError, grid_for
from atoll.server.aggregation.grid import MAX_FRACTION_BITS, MIN_FRACTION_BITS

INT64_MAX = 2**63 - 1
totals = st.integers(1, 2**41 - 1)
bounds = st.integers(-24, 5).map(lambda exponent: 2.0**exponent)
factors = st.floats(min_value=0.0, max_value=1.0, exclude_min=True)


@given(totals, bounds, st.integers(0, 2**20))
def test_no_sum_of_admissible_values_leaves_int64(total: int, max_abs: float, carried: int) -> None:
    try:
        grid = grid_for(total, max_abs, carried)
    except GridError:
        assert (total + carried).bit_length() + 5 + MIN_FRACTION_BITS > 62  # 5: the largest max_abs here is 2**5
        return
    largest = int(Fraction(max_abs) * 2**grid.fraction_bits)
    assert largest == Fraction(max_abs) * 2**grid.fraction_bits
    assert largest < 2**51
    assert largest * grid.max_total_weight < 2**62 < INT64_MAX


@given(totals, bounds)
def test_the_bits_are_spent_on_the_fraction(total: int, max_abs: float) -> None:
    grid = grid_for(total, max_abs)
    used = grid.fraction_bits + grid.weight_total_bits + math.log2(max_abs)
    assert used == 62 or (used < 62 and grid.fraction_bits == MAX_FRACTION_BITS)
    assert grid.weight_total_bits >= 24


@given(st.lists(st.tuples(st.integers(1, 2**20), factors), min_size=1, max_size=20))
def test_weights_stay_below_the_total_and_keep_their_ratios(members: list[tuple[int, float]]) -> None:
    grid = grid_for(sum(examples for examples, _ in members))
    fresh = [grid.weight_of(examples) for examples, _ in members]
    assert [Fraction(weight, fresh[0]) for weight in fresh] == [Fraction(n, members[0][0]) for n, _ in members]
    stale = [grid.weight_of(examples, factor) for examples, factor in members]
    assert all(1 <= old <= new for old, new in zip(stale, fresh, strict=True))
    assert sum(stale) <= sum(fresh) <= grid.max_total_weight


@given(st.integers(1, 2**20), factors)
def test_a_stale_weight_is_the_nearest_integer_ties_to_even(examples: int, factor: float) -> None:
    grid = grid_for(2**20)
    exact = Fraction(factor) * examples * 2**grid.weight_shift
    assert grid.weight_of(examples, factor) == max(1, round(exact))


def test_uniform_weights_are_all_one_example() -> None:
    grid = grid_for(8)
    assert {grid.weight_of(1) for _ in range(8)} == {1 << 20}
    assert grid.resolution == 2.0**-33


def test_a_huge_cohort_keeps_its_counts_unshifted() -> None:
    grid = grid_for(2**40)
    assert (grid.weight_shift, grid.weight_of(12345)) == (0, 12345)


@pytest.mark.parametrize(
    ("total", "max_abs", "carried", "says"),
    [
        (0, 32.0, 0, "total of at least 1"),
        (-3, 32.0, 9, "no negative weights"),
        (9, 32.0, -1, "no negative weights"),
        (100, 30.0, 0, "take 16 or 32"),
        (100, 0.0, 0, "powers of two"),
        (100, -32.0, 0, "powers of two"),
        (100, float("inf"), 0, "powers of two"),
        (100, float("nan"), 0, "powers of two"),
        (100, 2.0**30, 0, "lower max_abs"),
        (2**50, 32.0, 0, "weigh the participants equally"),
    ],
)
def test_refusals_name_the_value_and_the_remedy(total: int, max_abs: float, carried: int, says: str) -> None:
    with pytest.raises(GridError) as caught:
        grid_for(total, max_abs, carried)
    assert says in str(caught.value.detail)


@pytest.mark.parametrize(
    ("fraction_bits", "max_abs", "weight_shift", "weight_total_bits"),
    [
        (15, 32.0, 0, 24),
        (53, 2.0**-4, 0, 10),
        (34, 32.0, 13, 24),
        (33, 32.0, 24, 24),
        (33, 32.0, -1, 24),
        (50, 2.0, 0, 1),
    ],
)
def test_an_impossible_grid_cannot_be_made(
    fraction_bits: int, max_abs: float, weight_shift: int, weight_total_bits: int
) -> None:
    with pytest.raises(GridError):
        Grid(fraction_bits, max_abs, weight_shift, weight_total_bits)


def test_weights_out_of_range_are_refused() -> None:
    grid = grid_for(100)
    for examples, factor in ((0, 1.0), (128, 1.0), (1, 0.0), (1, 1.5), (1, float("nan"))):
        with pytest.raises(GridError):
            grid.weight_of(examples, factor)
