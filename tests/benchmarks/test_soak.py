"""A soak of a few seconds: rounds continue under churn, and a leaking server is detected."""

import sys
from pathlib import Path

import pytest

from benchmarks.soak.case import Soaked, figures, soak
from benchmarks.starting import forks

pytestmark = pytest.mark.system

SECONDS, SAMPLE_S, PAUSE_S = 14.0, 0.5, 1.0
LEAKING = (sys.executable, str(Path(__file__).with_name("leaking_server.py")))


@pytest.fixture(scope="module")
def leaking() -> Soaked:
    with forks(wanted=True):  # participants and commands; the server starts by itself
        return soak(SECONDS, server=LEAKING, seed=3, sample_s=SAMPLE_S, pause_s=PAUSE_S)


@pytest.mark.parametrize("series", ["memory", "descriptors"])
def test_a_leak_is_found(leaking: Soaked, series: str) -> None:
    verdict = leaking.verdict(series)
    assert not verdict.flat, verdict


@pytest.mark.parametrize("series", ["log", "database"])  # pools of threads are still filling after seconds
def test_what_does_not_leak_is_not_accused(leaking: Soaked, series: str) -> None:
    verdict = leaking.verdict(series)
    assert verdict.flat, verdict


def test_participants_came_and_went(leaking: Soaked) -> None:
    counts = leaking.counts
    assert counts.submitted > 0
    assert counts.started + counts.stopped + counts.killed + counts.suspended > 6


def test_the_table_says_what_missed(leaking: Soaked) -> None:
    missed = {figure.name.strip() for figure in figures(leaking, "soak") if not figure.ok}
    assert {"memory, fitted growth", "descriptors, fitted growth"} <= missed
