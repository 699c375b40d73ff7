"""What is released: small cells, quantiles at the edges, changed tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from atoll.statistics import Answerer, AnswersError, Disclosure, Findings, FindingsError, first_state
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
    found = counted([table, table, ["f"] * 9 + ["d", "m", "x"]], min_rows=5)
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
        Disclosure(query).apply(number, state, 3)
        assert not state["answer"].any()


def test_two_cells_of_one_row_are_hidden_with_a_third() -> None:
    """They are not 0, and together 2: without a third, each is known to be 1."""
    found = counted([["f"] * 30 + ["d"], ["f"] * 30 + ["m"], ["f"] * 30], min_rows=5)
    assert found == {"f": None, "m": None, "d": None, "other": 0, "missing": 0}


def test_cells_of_one_participant_are_hidden_with_one_of_several() -> None:
    """Their sum, the total less the other cells, would be figures of that participant alone."""
    tables = [["f"] * 50 + ["x"] * 40, ["f"] * 50 + ["x"] * 30, ["f"] * 50 + ["m"] * 50 + ["d"] * 40 + ["x"] * 30]
    found = counted(tables, min_rows=5, min_participants=3)
    assert found == {"f": 150, "m": None, "d": None, "other": None, "missing": 0}


def states(query: StatisticsQuery, tables: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The models that the rounds release."""
    found = [first_state(query)]
    for number in range(query.rounds):
        answers = [Answerer(query, table).answer(number, found[-1]) for table in tables]
        state = {name: tensor + sum(one[name] for one in answers) / 3 for name, tensor in found[-1].items()}
        Disclosure(query).apply(number, state, len(tables))
        found.append(state)
    return found[1:]


def test_models_of_early_rounds_do_not_count_the_rows_below_a_quantile() -> None:
    """Quantiles on both sides of a small cell would count its rows."""
    tables = [{"age": np.linspace(17, 31, 60)}] * 3
    for state in states(StatisticsQuery(("age",), quantiles=(0.25, 0.5, 0.75)), tables):
        assert set(np.unique(state["numeric/quantiles"][..., 2])) <= {0.0, 1.0}


@pytest.mark.parametrize("seed", range(5))
def test_the_cell_of_a_quantile_has_at_least_min_rows_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [{"age": rng.normal(50, 12, 70)} for _ in range(3)]
    pooled = np.concatenate([table["age"] for table in tables])
    query = StatisticsQuery(("age",), quantiles=(0.1, 0.25, 0.5, 0.9), refinements=8, min_rows=5)
    for quantile in played(query, tables).column("age").quantiles:
        assert quantile.low is not None
        assert quantile.high is not None
        assert quantile.low <= np.quantile(pooled, quantile.share, method="inverted_cdf") <= quantile.high
        inside = ((pooled >= quantile.low) & (pooled <= quantile.high)).sum()
        assert 5 <= inside <= 15


def test_a_round_that_counts_other_rows_is_refused() -> None:
    query = StatisticsQuery(("age",))
    state = first_state(query)
    for number, rows in enumerate([20, 21]):
        answer = Answerer(query, {"age": np.arange(float(rows))}).answer(number, state)
        state = {name: tensor + answer[name] for name, tensor in state.items()}
        if number == 0:
            Disclosure(query).apply(number, state, 1)
    with pytest.raises(AnswersError, match="round 2 counted 21 rows of 1 participants, round 1 20 of 1"):
        Disclosure(query).apply(1, state, 1)


def test_sums_that_no_table_has_give_no_figures() -> None:
    query = StatisticsQuery(("age",), min_rows=1, min_participants=1)
    state = first_state(query)
    for number in range(query.rounds):
        answer = Answerer(query, {"age": np.arange(20.0)}).answer(number, state)
        state = {name: tensor + answer[name] for name, tensor in state.items()}
        Disclosure(query).apply(number, state, 1)
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
