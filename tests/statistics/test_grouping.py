"""Figures of each label: those of the pooled rows, and none that small labels follow from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.statistics import Answerer, AnswersError, Disclosure, Findings, FindingsError, first_state
from atoll.statistics.blocks import unpacked
from atoll.wire.statistics_query import CategoryColumn, StatisticsQuery
from tests.statistics.test_figures import played

SEX = CategoryColumn("sex", ("f", "m", "d"))
QUERY = StatisticsQuery(("age", "dose"), (CategoryColumn("ward", ("a",)), SEX), quantiles=(0.5,), by="sex")
Numbers = npt.NDArray[np.float64]


def table_of(seed: int, sexes: Sequence[str | None]) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    dose = rng.normal(1e6, 1, len(sexes))
    dose[rng.random(len(sexes)) < 0.2] = np.nan
    return {"age": rng.normal(50, 12, len(sexes)), "dose": dose, "sex": sexes, "ward": ["a"] * len(sexes)}


def test_figures_of_labels_are_those_of_their_pooled_rows() -> None:
    tables = [table_of(seed, ["f"] * 30 + ["m"] * 20 + ["d"] * 9 + ["x"] * 8 + [None] * 7) for seed in range(3)]
    found = played(QUERY, tables)
    sexes = np.array([sex for table in tables for sex in table["sex"]], object)
    for name in QUERY.numeric:
        pooled = np.concatenate([table[name] for table in tables])
        for group in found.column(name).groups:
            rows = pooled[sexes == {"level": group.level, "other": "x", "missing": None}[group.kind]]
            rows = rows[~np.isnan(rows)]
            assert group.count == rows.size
            assert group.mean == pytest.approx(rows.mean(), rel=1e-12)
            assert group.variance == pytest.approx(rows.var(ddof=1), rel=1e-9)
    assert found.column("age").group("m").count == 60
    with pytest.raises(FindingsError, match="the job asked for: 'f', 'm', 'd'"):
        found.column("age").group("x")
    assert Findings.from_json(found.to_json()) == found
    assert {"count of level", "mean of other", "deviation of missing"} <= {
        str(row["figure"]) for row in found.records()
    }


def test_a_hidden_label_is_hidden_in_every_column() -> None:
    """The table of categories hides m with d; a column in which f has fewer values than m would hide f and show m."""
    tables = [table_of(seed, ["f"] * 30 + ["m"] * 25 + ["d"]) for seed in range(3)]
    for table in tables:
        table["dose"] = np.where(np.array(table["sex"]) == "f", np.nan, 1.0)
        table["dose"][:6] = 1.0
    found = played(QUERY, tables)
    assert found.categories[1].counts == {"f": 90, "m": None, "d": None}
    for name in QUERY.numeric:
        assert {found.column(name).group(level).count for level in ("m", "d")} == {None}
    assert found.column("age").group("f").count == 90


def test_a_label_of_few_values_goes_with_the_next_smallest_in_its_column_alone() -> None:
    tables = [table_of(seed, ["f"] * 30 + ["m"] * 20 + ["d"] * 9) for seed in range(3)]
    for table in tables:
        table["dose"] = np.where(np.array(table["sex"]) == "d", np.nan, 1.0)
        table["dose"][-1] = 1.0
    found = played(QUERY, tables)
    counts = {group.level: group.count for group in found.column("dose").groups if group.kind == "level"}
    assert counts == {"f": 90, "m": None, "d": None}
    assert found.column("age").group("d").count == 27
    hidden = found.column("dose").group("d")
    assert (hidden.mean, hidden.variance, hidden.deviation) == (None, None, None)


def test_a_label_of_few_participants_is_hidden() -> None:
    tables = [table_of(seed, ["f"] * 30 + ["m"] * 20 + ["d"] * (0 if seed else 40)) for seed in range(3)]
    assert played(QUERY, tables).column("age").group("d").count is None


def test_nothing_of_a_hidden_column_is_released_by_label() -> None:
    tables = [table_of(seed, ["f"] * 30 + ["m"] * 20) for seed in range(3)]
    for table in tables:
        table["dose"] = np.full(50, np.nan)
        table["dose"][0] = 1.0
    assert played(QUERY, tables).column("dose").groups == ()


@pytest.mark.parametrize("seed", range(40))
def test_no_hidden_label_follows_from_what_is_released(seed: int) -> None:
    """Every sum of hidden labels that follows, by whole columns less the others, has enough rows and participants."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([0.4] * 5)
    labels: list[str | None] = ["f", "m", "d", "x", None]
    tables = []
    for hospital in range(4):
        sexes = [labels[place] for place in rng.choice(5, 25, p=shares)]
        tables.append(table_of(100 * seed + hospital, sexes))
    found = played(QUERY, tables)
    category = found.categories[1]
    rows_of = {**category.counts, "other": category.other, "missing": category.missing}
    table_hidden = {label for label, rows in rows_of.items() if rows is None}
    for name in QUERY.numeric:
        groups = {group.level or group.kind: group.count for group in found.column(name).groups}
        hidden = {label for label, count in groups.items() if count is None}
        assert table_hidden <= hidden
        rows, holders = of_labels(tables, name, hidden)
        if rows:
            assert rows >= QUERY.min_rows
            assert holders >= QUERY.min_participants
            assert len([label for label in hidden if of_labels(tables, name, {label})[0]]) > 1
        for label, count in groups.items():
            if count:
                assert count == of_labels(tables, name, {label})[0] >= QUERY.min_rows


def of_labels(tables: list[dict[str, Any]], name: str, labels: set[str]) -> tuple[int, int]:
    """Rows with a value of these labels, and participants that have some."""
    wanted = {{"other": "x", "missing": None}.get(label, label) for label in labels}
    each = []
    for table in tables:
        pairs = zip(table["sex"], table[name], strict=True)
        each.append(sum(sex in wanted and not np.isnan(value) for sex, value in pairs))
    return sum(each), sum(map(bool, each))


@pytest.mark.parametrize(("number", "block"), [(0, "group_present"), (1, "group_sum"), (1, "group_squares")])
def test_groups_that_do_not_add_up_are_refused(number: int, block: str) -> None:
    table, state = table_of(1, ["f"] * 30 + ["m"] * 20), first_state(QUERY)
    for before in range(number + 1):
        state["answer"][:] = Answerer(QUERY, table).answer(before, state)["answer"]
        if before < number:
            Disclosure(QUERY).apply(before, state, 3)
    unpacked(QUERY, number, state["answer"])[block][0, 0, 0] += 1
    with pytest.raises(AnswersError, match="add up"):
        Disclosure(QUERY).apply(number, state, 3)
