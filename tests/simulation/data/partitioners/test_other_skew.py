"""Partitioners by size, id, property and column: what they promise, and what they refuse."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from atoll.simulation import data
from atoll.simulation.data import PartitionError

COLUMNS = tuple("abcdefg")


def test_shares_grow_as_their_name_says() -> None:
    rows, places = 100_000, np.arange(1, 6)
    for make, units in (
        (data.linear_sizes, places),
        (data.square_sizes, places**2),
        (data.exponential_sizes, np.exp(places)),
    ):
        sizes = np.array([part.size for part in make(rows, population=5, seed=1)])
        assert sizes.sum() == rows
        assert np.abs(sizes - units / units.sum() * rows).max() < 5


@pytest.mark.parametrize("make", [data.linear_sizes, data.square_sizes, data.exponential_sizes])
def test_the_population_in_the_error_is_the_largest_that_works(make: Any) -> None:
    with pytest.raises(
        PartitionError, match=r"participant 0 would get none of 500 rows; lower it to \d+ at most"
    ) as raised:
        make(500, population=400, seed=1)
    most = int(str(raised.value).split(" to ")[1].split()[0])
    assert len(make(500, population=most, seed=1)) == most
    with pytest.raises(PartitionError, match="would get none"):
        make(500, population=most + 1, seed=1)


def test_a_thousand_exponential_shares_do_not_overflow() -> None:
    with pytest.raises(PartitionError, match="lower it to 15 at most"):
        data.exponential_sizes(2_000_000, population=1000, seed=1)


def test_natural_ids_keep_the_order_of_rows() -> None:
    parts = data.natural_ids(["bo", "al", "bo", "cy", "al", "bo"])
    assert [part.tolist() for part in parts] == [[1, 4], [0, 2, 5], [3]]


@pytest.mark.parametrize(
    ("remainder", "sizes"), [("smaller", [2, 2, 2, 1]), ("bigger", [3, 2, 2]), ("drop", [2, 2, 2])]
)
def test_ids_that_do_not_fill_a_group(remainder: Any, sizes: list[int]) -> None:
    ids = np.repeat(np.arange(7), 3)
    parts = data.grouped_ids(ids, group_size=2, remainder=remainder)
    assert [np.unique(ids[part]).size for part in parts] == sizes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"group_size": 2, "remainder": "error"}, "group_size is 2: 7 ids leave 1 over; give a divisor of 7"),
        ({"group_size": 8, "remainder": "bigger"}, "group_size is 8: 7 ids leave 7 over"),
        ({"group_size": 8, "remainder": "drop"}, "group_size is 8: 7 ids leave 7 over"),
        ({"group_size": 2, "remainder": "lose"}, "remainder is 'lose': give smaller, bigger, drop or error"),
        ({"group_size": 0}, "group_size is 0: give an integer of at least 1"),
    ],
)
def test_grouped_ids_refuses(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.grouped_ids(np.arange(7), **arguments)


def test_strict_parts_are_sorted_by_the_property() -> None:
    values = np.random.default_rng(1).normal(size=100)
    parts = data.continuous(values, population=4, strictness=1.0, seed=1)
    bounds = [(values[part].min(), values[part].max()) for part in parts]
    assert all(before[1] < after[0] for before, after in pairwise(bounds))


@pytest.mark.parametrize(
    ("values", "strictness", "says"),
    [
        (np.ones(10), 0.5, "all values are equal: pass strictness=0, or divide by another property"),
        (np.arange(10), 1.5, "strictness is 1.5: give a number from 0 (alike) to 1 (sorted)"),
        (np.array([1.0, np.nan, 2.0]), 0.5, "values[1] is nan: leave rows out whose value is not finite"),
        (np.array(["a", "b"]), 0.5, "dtype <U1: give one number per row"),
    ],
)
def test_continuous_refuses(values: Any, strictness: float, says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.continuous(values, population=2, strictness=strictness, seed=1)


def test_equal_values_can_be_divided_at_random() -> None:
    assert [part.size for part in data.continuous(np.ones(10), population=2, strictness=0, seed=1)] == [5, 5]


def test_a_seed_deals_columns_at_random() -> None:
    parts, other = (data.vertical_even(COLUMNS, population=3, active=["g"], seed=seed) for seed in (1, 2))
    assert [part.size for part in parts] == [2, 2, 3]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(7))
    assert parts[-1][-1] == other[-1][-1] == 6
    assert not all(np.array_equal(*pair) for pair in zip(parts, other, strict=True))


def test_shares_of_columns_are_rounded_down() -> None:
    columns = [str(number) for number in range(100)]
    parts = data.vertical_sizes(columns, sizes=[0.29, 0.0, 0.71])
    assert [part.size for part in parts] == [29, 0, 71]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"population": 8}, "population is 8 for 7 columns: lower it to 7 at most"),
        ({"active": ["z"]}, "active names column 'z': the columns are a, b, c, d, e, f, g"),
        ({"shared": "a"}, "shared is 'a': give a sequence of names, ['a']"),
        ({"shared": ["a"], "dropped": ["a"]}, "column 'a' is named twice in active, shared and dropped: name it once"),
        (
            {"active": ["a"], "active_to": 2},
            "active_to is 2: give first, last, all, new_first, new_last or a participant",
        ),
    ],
)
def test_vertical_even_refuses(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.vertical_even(COLUMNS, **{"population": 2} | arguments)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([3, 3], "sizes add up to 6 columns of 7: pass the rest as dropped"),
        ([3, 5], "sizes add up to 8 columns of 7: lower them"),
        ([0.5, 0.6], "sizes are shares that add up to 1.1: give shares from 0 that add up to 1"),
        ([], "sizes has shape (0,): give one size per participant"),
    ],
)
def test_vertical_sizes_refuses(sizes: Any, says: str) -> None:
    with pytest.raises(PartitionError, match=re.escape(says)):
        data.vertical_sizes(COLUMNS, sizes=sizes)


def test_a_column_occurs_once() -> None:
    with pytest.raises(PartitionError, match="column 'b' occurs twice"):
        data.vertical_even(["a", "b", "b"], population=2)
