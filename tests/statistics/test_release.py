"""What is released: small cells, quantiles at the edges, changed tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from atoll.statistics import Answerer, AnswersError, Findings, FindingsError, Release, first_state
from atoll.wire.statistics_query import CategoryColumn, StatisticsQuery
from tests.statistics.test_figures import played

SEX = CategoryColumn("sex", ("f", "m", "d"))


def counted(tables: Sequence[list[str]], **query: Any) -> dict[str, int | None]:
    found = played(StatisticsQuery(categories=(SEX,), **query), [{"sex": table} for table in tables])
    column = found.categories[0]
    return {**column.counts, "other": column.other, "missing": column.missing}


def test_a_cell_of_few_rows_goes_with_the_next_smallest() -> None:
    """Its rows would be the total less the other cells."""
    table = ["f"] * 30 + ["m"] * 20 + ["d"]
    found = counted([table] * 3, min_rows=5)
    assert found == {"f": 90, "m": None, "d": None, "other": 0, "missing": 0}


def test_two_small_cells_hide_each_other() -> None:
    table = ["f"] * 30 + ["d"]
    found = counted([table, table, ["f"] * 9 + ["m", "x"]], min_rows=5)
    assert found == {"f": 69, "m": None, "d": None, "other": None, "missing": 0}


def test_a_cell_of_few_participants_is_not_released() -> None:
    found = counted([["f"] * 50, ["f"] * 50, ["f"] * 50 + ["m"] * 50], min_rows=5, min_participants=3)
    assert found == {"f": None, "m": None, "d": 0, "other": 0, "missing": 0}


def test_nothing_of_a_column_of_few_rows_is_released() -> None:
    tables = [{"age": [50.0, None]}, {"age": [60.0, None]}, {"age": [70.0, None]}]
    query = StatisticsQuery(("age",), quantiles=(0.5,), minimum_and_maximum=True, min_rows=5)
    age = played(query, tables).column("age")
    assert (age.count, age.missing, age.mean, age.edges, age.histogram) == (None, None, None, (), ())
    assert [(one.low, one.high) for one in age.quantiles] == [(None, None)] * 3


def test_a_quantile_with_few_rows_on_one_side_is_not_released_but_the_maximum_that_was_asked_for_is() -> None:
    tables = [{"age": np.linspace(20, 90, 40) + number} for number in range(3)]
    query = StatisticsQuery(("age",), quantiles=(0.01, 0.5, 0.99), minimum_and_maximum=True, min_rows=5)
    low, first, median, last, high = played(query, tables).column("age").quantiles
    assert (first.low, last.high) == (None, None)
    assert median.low is not None
    assert low.low is not None
    assert high.high is not None
    assert low.low <= 20
    assert high.high >= 92


def test_the_sum_of_answers_is_not_kept() -> None:
    query = StatisticsQuery(("age",), quantiles=(0.5,))
    tables = [{"age": np.arange(20.0)}] * 3
    state = first_state(query)
    for number in range(query.rounds):
        answers = [Answerer(query, table).answer(number, state) for table in tables]
        state = {name: tensor + sum(one[name] for one in answers) / 3 for name, tensor in state.items()}
        Release(query).apply(number, state, 3)
        assert not state["answer"].any()
    assert not state["numeric/quantiles"][..., 2].any()


def test_a_round_that_counts_other_rows_is_refused() -> None:
    query = StatisticsQuery(("age",))
    state = first_state(query)
    for number, rows in enumerate([20, 21]):
        answer = Answerer(query, {"age": np.arange(float(rows))}).answer(number, state)
        state = {name: tensor + answer[name] for name, tensor in state.items()}
        if number == 0:
            Release(query).apply(number, state, 1)
    with pytest.raises(AnswersError, match="round 2 counted 21 rows of 1 participants, round 1 20 of 1"):
        Release(query).apply(1, state, 1)


def test_sums_that_no_table_has_give_no_figures() -> None:
    query = StatisticsQuery(("age",), min_rows=1, min_participants=1)
    state = first_state(query)
    for number in range(query.rounds):
        answer = Answerer(query, {"age": np.arange(20.0)}).answer(number, state)
        state = {name: tensor + answer[name] for name, tensor in state.items()}
        Release(query).apply(number, state, 1)
    state["numeric/squares"][:] = 0
    with pytest.raises(FindingsError, match="contradict each other"):
        Findings.of(query, state)


def test_a_run_that_has_not_ended_gives_no_figures() -> None:
    query = StatisticsQuery(("age",))
    with pytest.raises(FindingsError, match="0 of 2 rounds"):
        Findings.of(query, first_state(query))


def test_a_variance_that_float64_sums_would_lose_is_exact() -> None:
    rng = np.random.default_rng(7)
    tables = [{"x": 1e6 + 1e-3 * rng.standard_normal(50)} for _ in range(3)]
    pooled = np.concatenate([table["x"] for table in tables])
    column = played(StatisticsQuery(("x",)), tables).column("x")
    assert column.variance == pytest.approx(np.var(pooled - 1e6, ddof=1), rel=1e-6)
