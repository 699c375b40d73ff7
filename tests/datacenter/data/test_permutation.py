"""The keyed shuffle is a bijection, and mixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.datacenter.data.permutation import MAX_LENGTH, Order, Permutation

pytestmark = pytest.mark.slow


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 5000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 1 << 40))
def test_every_element_comes_once(length: int, seed: int, epoch: int) -> None:
    found = Permutation(length, seed, epoch)(np.arange(length))
    np.testing.assert_array_equal(np.sort(found), np.arange(length))


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 6000), start=st.integers(0, 20_000), count=st.integers(0, 300))
def test_an_order_is_one_epoch_after_the_other(length: int, start: int, count: int) -> None:
    places = range(start, start + count)
    expected = [Permutation(length, 9, at // length)(np.asarray([at % length]))[0] for at in places]
    order = Order(length, 9)
    order(max(0, start - 5000), max(0, start - 4990))
    assert order(start, start + count).tolist() == expected


@pytest.mark.parametrize("length", [1 << 40, MAX_LENGTH])
def test_nothing_of_its_size_is_held(length: int) -> None:
    places = np.arange(length - 1000, length)
    found = Permutation(length, 1, 2)(places)
    assert np.unique(found).size == 1000
    assert found.min() >= 0
    assert found.max() < length


def test_places_are_uniform_over_epochs_and_neighbours_part() -> None:
    """Chi-squared of where element 0 lands, 63 degrees of freedom: 131 is exceeded by chance once in a million."""
    landed = np.asarray([Permutation(64, 7, epoch)(np.asarray([0]))[0] for epoch in range(6400)])
    counts = np.bincount(landed, minlength=64)
    assert ((counts - 100.0) ** 2 / 100.0).sum() < 131
    found = Permutation(100_000, 7, 0)(np.arange(100_000))
    assert (np.abs(np.diff(found)) < 10).mean() < 0.001
    assert abs(np.corrcoef(np.arange(100_000), found)[0, 1]) < 0.02


@pytest.mark.parametrize(("length", "element"), [(5, 5), (5, -1)])
def test_what_is_no_element_is_refused(length: int, element: int) -> None:
    with pytest.raises(ValueError, match="of a permutation of 5"):
        Permutation(length, 0, 0)(np.asarray([element]))


@pytest.mark.parametrize("length", [0, MAX_LENGTH + 1])
def test_impossible_lengths_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="a permutation of"):
        Permutation(length, 0, 0)
