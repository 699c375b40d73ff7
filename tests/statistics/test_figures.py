"""Federated figures of scikit-learn's breast-cancer and wine over four non-IID hospitals, beside pooled ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn import datasets

from atoll.statistics import Answerer, Disclosure, Findings, first_state
from atoll.wire.statistics_query import CategoryColumn, StatisticsQuery

Floats = npt.NDArray[np.float64]
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
RELATIVE = 1e-12


def played(query: StatisticsQuery, tables: Sequence[Mapping[str, Any]]) -> Findings:
    """The figures of all rounds over these tables; means as the server's sum gives them."""
    state = first_state(query)
    answerers = [Answerer(query, table) for table in tables]
    for number in range(query.rounds):
        answers = [answerer.answer(number, state) for answerer in answerers]
        state = {name: tensor + sum(one[name] for one in answers) / len(answers) for name, tensor in state.items()}
        Disclosure(query).apply(number, state, len(answers))
    return Findings.of(query, state)


def hospitals(name: str, holes: float = 0.0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A data set pooled, and its rows over four hospitals, sorted by class: each sees mostly one."""
    found = getattr(datasets, f"load_{name}")()
    features, labels = np.array(found.data), found.target
    features[np.random.default_rng(1).random(features.shape) < holes] = np.nan
    parts = np.array_split(np.argsort(labels, kind="stable"), 4)
    columns = [str(column) for column in found.feature_names]

    def table(rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        numbers = {column: features[rows, place] for place, column in enumerate(columns)}
        return {**numbers, "label": [str(found.target_names[label]) for label in labels[rows]]}

    return table(np.arange(labels.size)), [table(part) for part in parts]


@pytest.mark.parametrize("holes", [0.0, 0.1])
@pytest.mark.parametrize("name", ["breast_cancer", "wine"])
def test_figures_of_four_hospitals_are_those_of_the_pooled_rows(name: str, holes: float) -> None:
    pooled, tables = hospitals(name, holes)
    numeric = tuple(column for column in pooled if column != "label")
    levels = tuple(sorted(set(pooled["label"])))
    query = StatisticsQuery(
        numeric,
        (CategoryColumn("label", levels),),
        bins=32,
        quantiles=SHARES,
        minimum_and_maximum=True,
        refinements=3,
        min_rows=1,
        min_participants=1,
    )
    found = played(query, tables)
    assert (found.participants, found.rows) == (4, len(pooled["label"]))
    for column in found.numeric:
        values = pooled[column.name][~np.isnan(pooled[column.name])]
        assert (column.count, column.missing) == (values.size, found.rows - values.size)
        assert column.mean == pytest.approx(values.mean(), rel=RELATIVE)
        assert column.deviation == pytest.approx(values.std(ddof=1), rel=RELATIVE)
        counts, _ = np.histogram(values, column.edges)
        assert list(column.histogram) == counts.tolist()
        expected = [values.min(), *np.quantile(values, SHARES, method="inverted_cdf"), values.max()]
        span = column.edges[-1] - column.edges[0]
        for quantile, value in zip(column.quantiles, expected, strict=True):
            assert quantile.low is not None
            assert quantile.high is not None
            assert quantile.low <= value <= quantile.high
            assert quantile.high - quantile.low <= span / 32**4 * 1.01
    (labels,) = found.categories
    assert labels.counts == {level: pooled["label"].count(level) for level in levels}
    assert (labels.other, labels.missing) == (0, 0)
