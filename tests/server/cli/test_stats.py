"""Figures of statistics as the command line shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.server.cli.stats import show_figures
from atoll.server.cli.stats_tables import bars, category_rows, numeric_columns, numeric_row
from atoll.statistics import CategoryFindings, Findings, NumericFindings, Quantile

AGE = NumericFindings(
    name="age",
    count=120,
    missing=3,
    resolution=2.0**-45,
    mean=61.25,
    variance=4.0,
    deviation=2.0,
    edges=(32.0, 48.0, 64.0),
    histogram=(40, 80),
    quantiles=(Quantile(0.0, None, None), Quantile(0.5, 60.0, 62.0)),
)
HIDDEN = NumericFindings("weight", None, None, None, None, None, None, (), (), (Quantile(0.5, None, None),))
FOUND = Findings(4, 123, (AGE, HIDDEN), (CategoryFindings("sex\x1b[2J", {"f": 100, "m": None}, 0, 23),))


def test_a_column_of_numbers_is_a_row() -> None:
    assert numeric_columns(FOUND)[:7] == ("column", "count>", "missing>", "mean>", "deviation>", "min>", "0.5>")
    assert numeric_row(AGE) == ("age", "120", "3", "61.25", "2", "-", "61", "▄█")


def test_what_is_suppressed_is_a_dash() -> None:
    assert numeric_row(HIDDEN) == ("weight", "-", "-", "-", "-", "-", "")


def test_names_do_not_control_the_terminal() -> None:
    rows = list(category_rows(FOUND))
    shown = [row[1:] for row in rows]
    assert shown == [("f", "100", "81.3%"), ("m", "-", "-"), ("(other)", "0", "0.0%"), ("(missing)", "23", "18.7%")]
    assert all(row[0].isprintable() for row in rows)


@pytest.mark.parametrize(("counts", "shown"), [((), ""), ((None, 0, 1), "· █"), ((0, 0), "  "), ((1, 8), "▁█")])
def test_a_histogram_is_a_letter_a_cell(counts: tuple[int | None, ...], shown: str) -> None:
    assert bars(counts) == shown


def test_the_signs_of_suppressed_figures_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    dotted = replace(AGE, histogram=(40, None), quantiles=(Quantile(0.5, 60.0, 62.0),))
    show_figures(Findings(4, 123, (dotted,), ()))
    written = capsys.readouterr()
    assert "█·" in written.out
    assert "- or ·: suppressed (too few rows or participants), or not defined" in written.err
