"""Statistics with noise: how far one row moves an answer, and what the noise does to the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.statistics import Answerer, Findings, first_state, release_noised, row_norm
from atoll.wire.statistics_query import CategoryColumn, NoisedStatistics, StatisticsQuery

SEX = CategoryColumn("sex", ("f", "m"))
QUERY = StatisticsQuery(
    ("age", "dose"), (SEX,), bins=24, quantiles=(0.1, 0.5, 0.9), noised=NoisedStatistics(((0, 120), (-1, 1)), 500)
)
Floats = npt.NDArray[np.float64]


def table_of(seed: int, rows: int = 300) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    dose = rng.uniform(-1, 1, rows)
    dose[rng.random(rows) < 0.1] = math.nan
    sex = rng.choice(["f", "m", "x"], rows).tolist()
    return {"age": rng.normal(50 + 5 * seed, 12, rows), "dose": dose, "sex": sex}


def answer_of(table: Mapping[str, Any], query: StatisticsQuery = QUERY) -> Floats:
    return Answerer(query, table).answer(0, first_state(query))["answer"]


def found_of(answers: Sequence[Floats], noise: Floats | None = None, deviation: float = 0.0) -> Findings:
    state = first_state(QUERY)
    total = np.sum(answers, axis=0) + (0 if noise is None else noise)
    state["answer"][:] = total / len(answers)
    state["participants"][:] = 1e9  # the noise on the other tensors of the model
    release_noised(state, len(answers), len(answers), deviation)
    return Findings.of(QUERY, state)


@pytest.mark.parametrize("seed", range(20))
def test_a_row_moves_an_answer_by_at_most_the_norm_of_a_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice([0, 120, -1e9, 1e9, 60, 1e-9, math.nan, rng.uniform(0, 120)], 2)
    row = {"age": values[0], "dose": values[1], "sex": ["f", "m", "x", None][rng.integers(4)]}
    table = table_of(seed, 40)
    more = {name: [*column, row[name]] for name, column in table.items()}
    moved = np.linalg.norm(answer_of(more) - answer_of(table))
    assert moved <= row_norm(QUERY) * (1 + 1e-12)


def test_the_norm_of_a_row_is_reached() -> None:
    row = {"age": [120.0], "dose": [-5.0], "sex": ["f"]}
    assert np.linalg.norm(answer_of(row)) == pytest.approx(row_norm(QUERY), rel=1e-12)
    assert row_norm(QUERY) == math.sqrt(1 + 3 * 2 + 1)


def test_answers_are_exact_on_the_grid_of_every_private_round() -> None:
    answer = answer_of(table_of(1)) * 2.0**16
    assert (answer == np.rint(answer)).all()


def test_without_noise_the_figures_are_those_of_the_pooled_rows() -> None:
    tables = [table_of(seed) for seed in range(4)]
    found = found_of([answer_of(table) for table in tables])
    ages = np.concatenate([table["age"] for table in tables])
    dose = np.concatenate([table["dose"] for table in tables])
    age = found.column("age")
    assert (found.participants, found.rows, age.count, age.missing) == (4, 1200, 1200, 0)
    assert age.mean == pytest.approx(ages.mean(), abs=120 * 2.0**-16)
    assert age.deviation == pytest.approx(ages.std(ddof=1), rel=1e-3)
    assert age.histogram == tuple(np.histogram(ages, bins=age.edges)[0])
    assert found.column("dose").missing == np.isnan(dose).sum()
    for quantile in age.quantiles:
        assert quantile.low is not None
        assert quantile.high is not None
        assert quantile.low <= np.quantile(ages, quantile.share, method="inverted_cdf") <= quantile.high
    sexes = [sex for table in tables for sex in table["sex"]]
    assert found.categories[0].counts == {"f": sexes.count("f"), "m": sexes.count("m")}
    assert found.categories[0].other == sexes.count("x")


def test_values_beyond_the_bounds_count_as_the_bound() -> None:
    column = found_of([answer_of({"age": [500.0] * 20, "dose": [-7.0] * 20, "sex": ["f"] * 20})]).column("age")
    assert (column.mean, column.histogram[-1]) == (120, 20)


def test_errors_are_those_that_noise_of_that_size_makes() -> None:
    answers, rng, deviation = [answer_of(table_of(seed)) for seed in range(4)], np.random.default_rng(3), 15.0
    draws = [found_of(answers, rng.normal(0, deviation, answers[0].size), deviation) for _ in range(1500)]
    exact = found_of(answers).column("age")
    for figure in ("count", "missing", "mean", "variance", "deviation"):
        errors = [getattr(draw.column("age").errors, figure) for draw in draws]
        off = [getattr(draw.column("age"), figure) - getattr(exact, figure) for draw in draws]
        # The relative standard error of a deviation of 1,500 draws is 2 %; errors are of the first order.
        assert np.std(off) == pytest.approx(np.mean(errors), rel=0.12), figure
    cells = np.array([draw.column("age").histogram for draw in draws]) - np.array(exact.histogram)
    assert np.std(cells) == pytest.approx(deviation, rel=0.02)


def test_quantiles_lie_in_their_cells_in_19_of_20_draws() -> None:
    tables, rng, deviation = [table_of(seed) for seed in range(4)], np.random.default_rng(4), 10.0
    answers = [answer_of(table) for table in tables]
    ages = np.concatenate([table["age"] for table in tables])
    draws = [found_of(answers, rng.normal(0, deviation, answers[0].size), deviation) for _ in range(400)]
    for place, share in enumerate(QUERY.shares):
        true = np.quantile(ages, share, method="inverted_cdf")
        cells = [draw.column("age").quantiles[place] for draw in draws]
        assert np.mean([cell.low <= true <= cell.high for cell in cells if cell.low is not None and cell.high]) > 0.93


def test_no_ratio_is_given_if_noise_outweighs_the_rows() -> None:
    answers = [answer_of(table_of(seed)) for seed in range(4)]
    column = found_of(answers, np.zeros(answers[0].size), 1000.0).column("age")
    assert (column.count, column.mean, column.deviation) == (1200, None, None)
    assert {quantile.low for quantile in column.quantiles} == {None}
    assert column.errors is not None
    assert column.errors.count == pytest.approx(1000 * math.sqrt(2))
    assert column.errors.mean is None


def test_noised_figures_are_saved_with_their_errors() -> None:
    found = found_of([answer_of(table_of(1))], None, 8.0)
    assert Findings.from_json(found.to_json()) == found
    rows = {(row["column"], row["figure"], row["cell"]): row["error"] for row in found.records()}
    assert rows["sex", "rows", "f"] == rows["age", "missing", ""] == 8.0
    assert rows["age", "quantile", "0.5"] is None
