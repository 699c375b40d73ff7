"""The table of measured cases is the benchmark's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.server.privacy.measured_cases import CASES, MeasuredCase, beside

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "privacy-samples.json"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.data} {case.epsilon:g}")
def test_each_case_is_as_it_was_measured(case: MeasuredCase) -> None:
    figures = json.loads(RESULTS.read_text(encoding="utf-8"))
    names = [figure["name"] for figure in figures]
    at = names.index(
        f"{case.data}, {case.rows} rows each, {case.elements} elements, epsilon {case.epsilon:g}: accuracy"
    )
    share = names.index(f"{case.data}: share of the largest class")
    assert (case.accuracy, case.without) == pytest.approx((figures[at]["value"], figures[at]["limit"]), abs=5e-4)
    assert case.of_run == pytest.approx(figures[at + 1]["value"], abs=5e-3)
    assert case.largest_class == pytest.approx(figures[share]["value"], abs=5e-4)


def test_no_case_is_left_out() -> None:
    names = [figure["name"] for figure in json.loads(RESULTS.read_text(encoding="utf-8"))]
    assert len(CASES) == sum(name.endswith(": accuracy") for name in names)


def test_a_plan_is_shown_beside_its_neighbours() -> None:
    ratios = [case.of_run for case in CASES]
    assert ratios == sorted(ratios)
    assert beside(ratios[0] / 2) == CASES[:2]
    assert beside(ratios[-1] * 2) == CASES[-2:]
    between = (ratios[4] + ratios[5]) / 2
    assert beside(between) == CASES[3:7]
