"""Values on the grid: ranges, exact sums, cells."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atoll.statistics.grid import (
    GRID_BITS,
    LOWEST_OCTAVE,
    cells_of,
    exact_squares,
    exact_sum,
    octave_presence,
    on_grid,
    range_of,
)

VALUES = st.lists(st.floats(-(2.0**90), 2.0**90, allow_nan=False), min_size=1, max_size=50)


@given(VALUES)
@example([1.175494351e-38, -9.375149046123145e-29])  # counts as 0 for the range, and was a positive value beside it
def test_each_value_lies_in_the_range_on_the_grid(values: list[float]) -> None:
    array = np.array(values)
    found = range_of(octave_presence(array))
    whole = on_grid(array, found.exponent)
    assert found.low < found.high
    assert found.low <= whole.min()
    assert whole.max() <= found.high
    unit = Fraction(found.resolution)
    error = max(unit / 2, Fraction(2) ** (LOWEST_OCTAVE - 1))
    assert all(abs(Fraction(one) - int(q) * unit) <= error for one, q in zip(values, whole, strict=True))


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([5.0, 9.0], 4.0, 16.0),
        ([-5.0, 9.0], -8.0, 16.0),
        ([-5.0, -9.0], -16.0, -4.0),
        ([0.0, 3.0], 0.0, 4.0),
        ([-3.0, 0.0], -4.0, 0.0),
        ([1e-40, 3.0], 0.0, 4.0),
    ],
)
def test_a_range_ends_at_powers_of_two(values: list[float], low: float, high: float) -> None:
    found = range_of(octave_presence(np.array(values)))
    assert (found.low * found.resolution, found.high * found.resolution) == (low, high)


def test_zeros_alone_have_a_range() -> None:
    found = range_of(octave_presence(np.zeros(3)))
    assert cells_of(on_grid(np.zeros(3), found.exponent), found.low, found.high, found.high, 4).tolist() == [3, 0, 0, 0]


@given(st.lists(st.integers(-(2**GRID_BITS), 2**GRID_BITS), max_size=600))
def test_sums_are_those_of_whole_numbers(whole: list[int]) -> None:
    array = np.array(whole, np.int64)
    assert exact_sum(array) == sum(whole)
    assert exact_squares(array) == sum(one * one for one in whole)


def test_the_largest_magnitudes_do_not_overflow() -> None:
    array = np.full(100_000, -(2**GRID_BITS), np.int64)
    assert exact_sum(array) == -(2**GRID_BITS) * 100_000
    assert exact_squares(array) == 2 ** (2 * GRID_BITS) * 100_000


def test_the_upper_edge_of_the_range_is_inside_and_that_of_a_cell_is_not() -> None:
    whole = np.array([0, 4, 5, 9, 10])
    assert cells_of(whole, 0, 10, 10, 2).tolist() == [2, 3]
    assert cells_of(whole, 0, 5, 10, 2).tolist() == [1, 1]
    assert cells_of(whole, 0, 10, 10, 8).tolist() == [1, 0, 2, 0, 2, 0, 0, 0]
