"""Page's cumulative sum over noised numbers of reports: no alarm if all report, an early one if few do."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.server.privacy.report_shortfall import ReportShortfall

PLANS = [ReportShortfall(24, 10.0), ReportShortfall(100, 12.5), ReportShortfall(1000, 10.0)]


def alarm_after(detector: ReportShortfall, share: float, rounds: int, seed: int) -> int:
    """The round of the first alarm where cohorts are Poisson and this share of them reports; ``rounds`` if none."""
    rng, shortfall = np.random.default_rng(seed), 0.0
    for number in range(rounds):
        reports = int(rng.poisson(share * detector.planned))
        count = detector.noised_count(reports, rng.bytes(32))
        shortfall = detector.next_shortfall(shortfall, count)
        if shortfall > detector.limit:
            return number + 1
    return rounds


@pytest.mark.parametrize("detector", PLANS, ids=str)
def test_where_all_report_there_is_no_alarm(detector: ReportShortfall) -> None:
    assert alarm_after(detector, 1.0, 3000, seed=1) == 3000


@pytest.mark.parametrize(("detector", "most"), list(zip(PLANS, (12, 3, 1), strict=True)), ids=str)
def test_where_none_reports_the_alarm_comes_within_rounds(detector: ReportShortfall, most: int) -> None:
    assert max(alarm_after(detector, 0.0, 100, seed) for seed in range(5)) <= most


def test_good_rounds_do_not_hide_later_bad_ones() -> None:
    detector = PLANS[1]
    shortfall = 0.0
    for _ in range(1000):
        shortfall = detector.next_shortfall(shortfall, 100.0)
    assert shortfall == 0.0
    assert detector.next_shortfall(shortfall, 0.0) > detector.limit


def test_the_number_has_the_noise_that_is_charged() -> None:
    detector = ReportShortfall(100, 7.0)
    counts = [detector.noised_count(30, number.to_bytes(32, "big")) for number in range(4000)]
    assert np.mean(counts) == pytest.approx(30, abs=0.5)
    assert np.std(counts) == pytest.approx(7.0, rel=0.05)
