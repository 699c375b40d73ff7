"""What a run of statistics asks for, as a message and back."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.wire.errors import WireError
from atoll.wire.statistics_query import CategoryColumn, StatisticsQuery, query_from_proto, query_to_proto
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


def test_a_query_comes_back_from_its_message() -> None:
    sent = query_to_proto(QUERY).SerializeToString()
    assert query_from_proto(participation_pb2.StatisticsQuery.FromString(sent)) == QUERY


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
