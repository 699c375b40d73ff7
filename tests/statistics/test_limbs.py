"""Whole numbers as limbs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.statistics.limbs import (
    MAX_ABS,
    MAX_ROWS,
    SQUARE_LIMBS,
    SUM_LIMBS,
    counts_from_limbs,
    counts_to_limbs,
    from_limbs,
    to_limbs,
)

LARGEST = MAX_ROWS << 52


@given(st.lists(st.integers(-LARGEST, LARGEST), min_size=1, max_size=20))
def test_sums_of_limbs_are_limbs_of_the_sum(numbers: list[int]) -> None:
    limbs = np.array([to_limbs(number, SUM_LIMBS) for number in numbers], np.float64)
    assert np.abs(limbs).max() <= MAX_ABS
    assert from_limbs(limbs.sum(axis=0)) == sum(numbers)


@pytest.mark.parametrize(("number", "limbs"), [(LARGEST << 52, SQUARE_LIMBS), (-LARGEST, SUM_LIMBS), (-1, 1), (0, 2)])
def test_the_largest_numbers_fit(number: int, limbs: int) -> None:
    assert from_limbs(to_limbs(number, limbs)) == number


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError, match="more than 2 limbs"):
        to_limbs(1 << 40, 2)


def test_counts_keep_their_shape() -> None:
    counts = np.array([[0, 1, MAX_ROWS], [1 << 20, 5, 7]], np.int64)
    assert counts_to_limbs(counts).shape == (2, 3, 2)
    assert (counts_from_limbs(counts_to_limbs(counts)) == counts).all()
