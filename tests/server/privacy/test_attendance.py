"""Page's cumulative sum over noised numbers of reports: no alarm if all report, an early one if few do."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.server.privacy.attendance import Attendance

PLANS = [Attendance(24, 10.0), Attendance(100, 12.5), Attendance(1000, 10.0)]


def alarm_after(attendance: Attendance, share: float, rounds: int, seed: int) -> int:
    """The round of the first alarm where cohorts are Poisson and this share of them reports; ``rounds`` if none."""
    rng, shortfall = np.random.default_rng(seed), 0.0
    for number in range(rounds):
        reports = int(rng.poisson(share * attendance.planned))
        count = attendance.noised_count(reports, rng.bytes(32))
        shortfall = attendance.next_shortfall(shortfall, count)
        if shortfall > attendance.limit:
            return number + 1
    return rounds


@pytest.mark.parametrize("attendance", PLANS, ids=str)
def test_where_all_report_there_is_no_alarm(attendance: Attendance) -> None:
    assert alarm_after(attendance, 1.0, 3000, seed=1) == 3000


@pytest.mark.parametrize(("attendance", "most"), list(zip(PLANS, (12, 3, 1), strict=True)), ids=str)
def test_where_none_reports_the_alarm_comes_within_rounds(attendance: Attendance, most: int) -> None:
    assert max(alarm_after(attendance, 0.0, 100, seed) for seed in range(5)) <= most


def test_good_rounds_do_not_hide_later_bad_ones() -> None:
    attendance = PLANS[1]
    shortfall = 0.0
    for _ in range(1000):
        shortfall = attendance.next_shortfall(shortfall, 100.0)
    assert shortfall == 0.0
    assert attendance.next_shortfall(shortfall, 0.0) > attendance.limit


def test_the_number_has_the_noise_that_is_charged() -> None:
    attendance = Attendance(100, 7.0)
    counts = [attendance.noised_count(30, number.to_bytes(32, "big")) for number in range(4000)]
    assert np.mean(counts) == pytest.approx(30, abs=0.5)
    assert np.std(counts) == pytest.approx(7.0, rel=0.05)
