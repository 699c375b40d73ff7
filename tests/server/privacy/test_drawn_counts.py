"""The noise that releases draw for their counts has the standard deviation that the contract charges for."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from atoll.server.privacy.clipping import LEAST_COUNT_NOISE
from atoll.server.privacy.contract import AdaptiveClipping
from atoll.server.privacy.report_shortfall import LEAST_REPORT_NOISE
from atoll.server.privacy.run import PrivateRun, Summed
from tests.server.privacy.test_run import CONTRACT

pytestmark = pytest.mark.slow

Doubles = npt.NDArray[np.float64]

RELEASES = 25_000
FALSE_ALARM = 1e-6
EXPECTED = 100
WITHIN, REPORTS = 60, 90
SLOW = 1e-3
"""Learning rate: the norm moves too little to meet a bound."""
FAR = 1e6
"""Shortfall from which no count leads back to 0."""
NOISES = [(5.0, 10.0), (LEAST_COUNT_NOISE, LEAST_REPORT_NOISE), (37.5, 0.7)]
"""sigma_b of adaptive clipping, where one participant moves the count by 1/2, and ``report_noise``."""
TRIED = [NOISES[0], *(pytest.param(*noises, marks=pytest.mark.every_case) for noises in NOISES[1:])]


@cache
def drawn(count_noise: float, report_noise: float) -> tuple[Doubles, Doubles]:
    """The noise on the count of norms and on the number of reports in ``RELEASES`` releases, over its claim.

    Both are derived from a release's effects: the next clip norm, and the shortfall.
    """
    settings = AdaptiveClipping(1.0, quantile=0.5, learning_rate=SLOW, count_noise=count_noise)
    terms = replace(CONTRACT, clip=1.0, adaptive=settings, report_noise=report_noise, divisor_weight=EXPECTED)
    run = PrivateRun.begin(terms, 3.5)
    noise = replace(run.state.noise, secret=sha256(repr((count_noise, report_noise)).encode()).digest())
    run = PrivateRun(terms, 3.5, replace(run.state, noise=noise, shortfall=FAR))
    norms = (0.5,) * WITHIN + (2.0,) * (REPORTS - WITHIN)
    first = Summed(run.grid(EXPECTED, 32.0), 1000, b"", norms, REPORTS)
    after = [run.after_release(replace(first, binding=number.to_bytes(8, "big"))).state for number in range(RELEASES)]
    counts = [-math.log(state.clip) / SLOW * EXPECTED for state in after]  # of +-1/2 for each report
    reports = [FAR + EXPECTED / 2 - state.shortfall for state in after]
    of_counts = (np.array(counts) - (WITHIN - REPORTS / 2)) / count_noise
    return of_counts, (np.array(reports) - REPORTS) / report_noise


def bounds(values: Doubles) -> tuple[float, float]:
    """Bounds on the true variance, wrong with probability ``FALSE_ALARM``."""
    squares, freedom = float(np.sum(np.square(values))), values.size
    return squares / float(chi2.isf(FALSE_ALARM / 2, freedom)), squares / float(chi2.ppf(FALSE_ALARM / 2, freedom))


@pytest.mark.parametrize(("count_noise", "report_noise"), TRIED)
def test_each_count_has_the_noise_that_is_charged(count_noise: float, report_noise: float) -> None:
    for values in drawn(count_noise, report_noise):
        low, high = bounds(values)
        assert low < 1 < high < 1.1
        assert abs(np.mean(values)) * math.sqrt(values.size) < 5
        assert bounds(0.95 * values)[1] < 1


@pytest.mark.every_case
@pytest.mark.parametrize("part", [0, 1], ids=["norms", "reports"])
def test_over_all_settings_two_per_cent_less_noise_would_show(part: int) -> None:
    values = np.concatenate([drawn(*noises)[part] for noises in NOISES])
    low, high = bounds(values)
    assert low < 1 < high < 1.06
    assert bounds(0.98 * values)[1] < 1


@pytest.mark.parametrize(("count_noise", "report_noise"), TRIED)
def test_counts_of_one_release_and_of_different_ones_are_independent(count_noise: float, report_noise: float) -> None:
    counts, reports = drawn(count_noise, report_noise)
    for one, other in [(counts, reports), (counts[1:], counts[:-1]), (reports[1:], reports[:-1])]:
        assert abs(np.mean(one * other)) * math.sqrt(one.size) < 5
