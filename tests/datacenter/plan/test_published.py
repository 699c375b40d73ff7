"""Predictions beside published figures for H100s, each with its part: ``benchmarks.silo.published``."""

from __future__ import annotations

import pytest

from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.plan.step_time import Machine
from benchmarks.silo.published import MEMORY_WITHIN, ROWS, WITHIN, Row

WITH_MEMORY = [row for row in ROWS if row.reserved_gib is not None]
BY_NAME = {row.name: row for row in ROWS}


@pytest.mark.parametrize("row", [row for row in ROWS if not row.missed], ids=lambda row: row.name)
def test_within_the_stated_distance(row: Row) -> None:
    assert row.predicted() == pytest.approx(row.tokens_per_s, rel=WITHIN)


@pytest.mark.parametrize("row", [row for row in ROWS if row.missed], ids=lambda row: row.name)
def test_what_is_further_off_is_slower_than_published(row: Row) -> None:
    """If a prediction comes within the distance, its exception must be removed."""
    assert row.tokens_per_s / 1.6 < row.predicted() < row.tokens_per_s * (1 - WITHIN)


@pytest.mark.parametrize("row", [row for row in WITH_MEMORY if not row.memory_missed], ids=lambda row: row.name)
def test_memory_within_the_stated_distance(row: Row) -> None:
    assert row.planned_gib() == pytest.approx(row.reserved_gib, rel=MEMORY_WITHIN)


@pytest.mark.parametrize("row", [row for row in WITH_MEMORY if row.memory_missed], ids=lambda row: row.name)
def test_memory_that_is_further_off_is_less_than_published(row: Row) -> None:
    """If a plan comes within the distance, its exception must be removed."""
    assert row.reserved_gib is not None
    assert row.reserved_gib / 1.6 < row.planned_gib() < row.reserved_gib * (1 - MEMORY_WITHIN)


def test_better_is_predicted_to_be_better() -> None:
    """Predictions order the published configurations as the tables do."""
    eager, compiled, float8 = (
        BY_NAME[f"torchtitan 8B on 8{how}"].predicted() for how in ("", ", compiled", ", compiled, float8")
    )
    assert eager < compiled < float8
    by_schedule = [
        BY_NAME[f"torchtitan 405B on 512, 8 x 8 x 8, {name}, float8"].predicted() for name in ("1F1B", "interleaved")
    ]
    assert by_schedule == sorted(by_schedule)


def test_a_limited_part_has_shares_of_its_own() -> None:
    limited, full = (Machine.of(DATA_SHEETS[name]).efficiency for name in ("h100-500w", "h100"))
    assert limited.matmul < full.matmul
