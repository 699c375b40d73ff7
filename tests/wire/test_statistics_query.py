"""What a run of statistics asks for, as a message and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll.wire.errors import WireError
from atoll.wire.statistics_query import (
    CategoryColumn,
    NoisedStatistics,
    StatisticsQuery,
    query_from_proto,
    query_to_proto,
)
from atoll.wire.v1 import participation_pb2

QUERY = StatisticsQuery(
    ("age", "weight"),
    (CategoryColumn("sex", ("f", "m")),),
    bins=64,
    quantiles=(0.25, 0.5),
    minimum_and_maximum=True,
    refinements=1,
    min_rows=7,
    min_participants=4,
)


NOISED = StatisticsQuery(("age",), noised=NoisedStatistics(((0.0, 120.0),), 200))


BY = replace(QUERY, by="sex")


@pytest.mark.parametrize("query", [QUERY, NOISED, BY])
def test_a_query_comes_back_from_its_message(query: StatisticsQuery) -> None:
    sent = query_to_proto(query).SerializeToString()
    assert query_from_proto(participation_pb2.StatisticsQuery.FromString(sent)) == query


def test_groups_are_levels_other_values_and_none() -> None:
    assert (QUERY.groups, BY.groups) == (0, 4)


@pytest.mark.parametrize(
    ("query", "changes", "problem"),
    [
        (QUERY, {"by": "age"}, "by: 'age'; allowed is a column of categories: sex"),
        (BY, {"numeric": ()}, "there is no column of numbers to split"),
        (BY, {"noised": NoisedStatistics(((0.0, 1.0), (0.0, 1.0)), 9)}, "not available with noise"),
    ],
)
def test_what_cannot_be_split_by_label_is_refused(
    query: StatisticsQuery, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(WireError, match=problem):
        replace(query, **changes)


def test_a_query_with_noise_takes_one_round() -> None:
    assert NOISED.rounds == 1


@pytest.mark.parametrize(
    ("noised", "problem"),
    [
        (NoisedStatistics((), 200), "0; 1 are needed, one for each column"),
        (NoisedStatistics(((1.0, 1.0),), 200), "bounds.age: 1 to 1"),
        (NoisedStatistics(((0.0, float("inf")),), 200), "bounds.age: 0 to inf"),
        (NoisedStatistics(((0.0, 1.0),), 0), "max_rows: 0 rows"),
    ],
)
def test_bounds_are_checked(noised: NoisedStatistics, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        StatisticsQuery(("age",), noised=noised)


def test_bounds_that_do_not_match_are_refused() -> None:
    message = query_to_proto(NOISED)
    message.noised.lower.append(3.0)
    with pytest.raises(WireError, match="2 lower and 1 upper bounds"):
        query_from_proto(message)


@pytest.mark.parametrize(
    ("fields", "rounds"),
    [
        ({}, 2),
        ({"quantiles": (0.5,)}, 4),
        ({"minimum_and_maximum": True, "refinements": 3}, 5),
        ({"refinements": 8}, 2),
    ],
)
def test_rounds_follow_from_what_is_asked(fields: dict[str, Any], rounds: int) -> None:
    assert StatisticsQuery(("age",), **fields).rounds == rounds


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "numeric and categories: 0 columns; allowed are 1 to 2000"),
        ({"numeric": ("a", "a")}, "column 'a' is there twice"),
        ({"numeric": ("a\n",)}, "printable characters"),
        ({"categories": (CategoryColumn("a", ()),)}, "categories.a: 0 levels"),
        ({"categories": (CategoryColumn("a", ("x", "x")),)}, "categories.a: level 'x' is there twice"),
        ({"numeric": ("a",), "bins": 1}, "bins: 1; allowed are 2 to 1024"),
        ({"numeric": ("a",), "quantiles": (float("nan"),)}, "quantiles: nan"),
        ({"numeric": ("a",), "refinements": 9}, "refinements: 9"),
        ({"numeric": ("a",), "min_rows": 0}, "min_rows: 0"),
        ({"numeric": ("a",), "min_participants": 0}, "min_participants: 0"),
    ],
)
def test_what_is_out_of_range_is_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(WireError) as raised:
        StatisticsQuery(**fields)
    assert problem in str(raised.value)
