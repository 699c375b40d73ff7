"""Columns of tables of many kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atoll.statistics import Answerer, TableError
from atoll.statistics.columns import numbers_of, places_of
from atoll.wire.statistics_query import CategoryColumn, StatisticsQuery

SEX = CategoryColumn("x", ("f", "m"))


class NAType:
    """Stands for pandas' NA, which is found by the name of its type."""


@pytest.mark.parametrize(
    "column",
    [
        [1, None, 3],
        np.array([1.0, np.nan, 3.0]),
        np.ma.MaskedArray([1, 2, 3], [False, True, False]),
        [1, NAType(), "3"],
    ],
)
def test_missing_numbers_are_nan(column: Any) -> None:
    np.testing.assert_array_equal(numbers_of({"x": column}, "x"), [1, np.nan, 3])


@pytest.mark.parametrize(
    ("column", "levels", "places"),
    [
        (["f", "m", "d", None], ("f", "m"), [0, 1, 2, 3]),
        (np.array([0.0, 1.0, np.nan]), ("0", "1"), [0, 1, 3]),
        (np.ma.MaskedArray([7, 8], [False, True]), ("7", "8"), [0, 3]),
        ([True, False], ("True", "False"), [0, 1]),
        (np.array(["2020-01-01", "NaT"], "datetime64[D]"), ("2020-01-01",), [0, 2]),
    ],
)
def test_categories_are_compared_as_text(column: Any, levels: tuple[str, ...], places: list[int]) -> None:
    assert places_of({"x": column}, CategoryColumn("x", levels)).tolist() == places


def test_records_of_numpy_are_a_table() -> None:
    table = np.array([(1.5, "f"), (2.5, "m")], [("age", float), ("x", "U1")])
    assert numbers_of(table, "age").tolist() == [1.5, 2.5]
    with pytest.raises(TableError, match="no column 'weight'"):
        numbers_of(table, "weight")


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ([1.0, np.inf], "infinite"),
        ([2.0**100], "infinite or of magnitude"),
        (["Jane Doe"], "a value of type str_ that is no number"),
        ([[1.0, 2.0]], "2 dimensions"),
    ],
)
def test_what_is_no_number_is_refused_without_its_value(column: Any, problem: str) -> None:
    with pytest.raises(TableError, match=problem) as raised:
        numbers_of({"x": column}, "x")
    assert "Jane" not in str(raised.value)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(TableError, match="different lengths"):
        Answerer(StatisticsQuery(("y",), (SEX,)), {"x": ["f"], "y": [1.0, 2.0]})
