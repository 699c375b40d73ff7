"""Figures as files, and features standardised with them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from atoll.statistics import FIELDS, Findings, FindingsError, Scaling
from atoll.wire.statistics_query import CategoryColumn, StatisticsQuery
from tests.statistics.test_figures import played

RNG = np.random.default_rng(3)
TABLES = [{"age": RNG.normal(50, 9, 40), "weight": RNG.normal(70, 12, 40), "sex": ["f"] * 40} for _ in range(3)]
QUERY = StatisticsQuery(("age", "weight"), (CategoryColumn("sex", ("f", "m")),), quantiles=(0.5,))
FOUND = played(QUERY, TABLES)
POOLED = np.column_stack([np.concatenate([table[name] for table in TABLES]) for name in QUERY.numeric])


def test_a_file_gives_the_same_figures(tmp_path: Path) -> None:
    FOUND.save(tmp_path / "found.json")
    assert Findings.load(tmp_path / "found.json") == FOUND


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"format": "atoll.statistics/9"}'])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(FindingsError):
        Findings.from_json(text)


def test_features_are_standardised_as_with_the_pooled_rows() -> None:
    expected = (POOLED - POOLED.mean(axis=0)) / POOLED.std(axis=0, ddof=1)
    scaling = FOUND.scaling()
    np.testing.assert_allclose(scaling.standardise(POOLED), expected, rtol=1e-12)
    table = {"weight": POOLED[:, 1], "age": POOLED[:, 0]}
    np.testing.assert_allclose(FOUND.scaling(["age", "weight"]).standardise(table), expected, rtol=1e-12)
    assert Scaling.of_text(scaling.to_text()) == scaling


def test_a_constant_column_becomes_zeros() -> None:
    assert Scaling(("x",), (3.0,), (0.0,)).standardise(np.full((2, 1), 3.0)).tolist() == [[0.0], [0.0]]


def test_wrong_features_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(rows, 2\) is needed"):
        FOUND.scaling().standardise(POOLED[:, :1])
    with pytest.raises(FindingsError, match="no numeric column 'height'; there are: age, weight"):
        FOUND.scaling(["height"])
    with pytest.raises(ValueError, match="no scaling"):
        Scaling.of_text("{}")


def test_records_have_a_row_for_each_figure() -> None:
    rows = FOUND.records()
    assert all(tuple(row) == FIELDS for row in rows)
    of_age = [row["figure"] for row in rows if row["column"] == "age"]
    assert of_age[:6] == ["count", "missing", "mean", "variance", "deviation", "quantile"]
    assert [row["value"] for row in rows if row["column"] == "sex"] == [120, 0, 0, 0]
    file = io.StringIO()
    writer: csv.DictWriter[str] = csv.DictWriter(file, FIELDS)
    writer.writerows(rows)
    assert len(file.getvalue().splitlines()) == len(rows)


def test_a_quantile_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(FindingsError, match=r"no quantile 0.9; the job asked for: 0.5"):
        FOUND.column("age").quantile(0.9)
