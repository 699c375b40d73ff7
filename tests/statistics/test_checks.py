"""Sums that no tables have: a round with them releases nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atoll.statistics import Answerer, AnswersError, Disclosure, first_state
from atoll.statistics.blocks import packed, unpacked
from atoll.wire.statistics_query import CategoryColumn, StatisticsQuery

QUERY = StatisticsQuery(("age",), (CategoryColumn("sex", ("f", "m")),), bins=8, quantiles=(0.5,), refinements=1)
TABLES: list[dict[str, Any]] = [
    {"age": np.linspace(20, 60 + number, 30), "sex": ["f"] * 20 + ["m"] * 10} for number in range(3)
]


def play(number: int, name: str, place: tuple[int, ...], wrong: float) -> None:
    """Play the rounds; in round ``number`` the last participant adds ``wrong`` to an element of a block."""
    state = first_state(QUERY)
    for at in range(QUERY.rounds):
        answers = [Answerer(QUERY, table).answer(at, state) for table in TABLES]
        if at == number:
            blocks = {key: np.array(block) for key, block in unpacked(QUERY, at, answers[-1]["answer"]).items()}
            blocks[name][place] += wrong
            answers[-1]["answer"] = packed(QUERY, at, blocks)
        state = {key: tensor + sum(one[key] for one in answers) / 3 for key, tensor in state.items()}
        Disclosure(QUERY).apply(at, state, 3)


def test_the_sums_of_tables_pass() -> None:
    play(0, "rows", (0,), 0.0)


@pytest.mark.parametrize(
    ("number", "name", "place", "wrong", "problem"),
    [
        (0, "present", (0, 0), -200, "'present' counts rows outside 0 to 90"),
        (0, "present", (0, 0), -1, "column 'age' has rows that neither have a value nor miss one"),
        (0, "cells", (1, 0), 500, "'cells' counts rows outside 0 to 90"),
        (0, "cells", (1, 0), 5, "categories of column 'sex' do not add up"),
        (0, "cell_holders", (1,), 7, "'cell_holders' counts participants outside 0 to 3"),
        (1, "bins", (0, 3, 0), 4, "histogram of column 'age' does not add up"),
        (1, "sum", (0, 4), 1e6, "the sum of column 'age' is out of its range"),
        (1, "squares", (0, 7), -1e6, "sum and sum of squares of column 'age' contradict each other"),
        (2, "below", (0, 0, 0), 40, "a quantile's cell of column 'age' has more rows"),
        (2, "inner", (0, 0, 1, 0), -50, "'inner' counts rows outside 0 to 90"),
    ],
)
def test_sums_that_no_tables_have_are_refused(
    number: int, name: str, place: tuple[int, ...], wrong: float, problem: str
) -> None:
    with pytest.raises(AnswersError, match=rf"the sums of round {number + 1} cannot come from tables: .*{problem}"):
        play(number, name, place, wrong)
