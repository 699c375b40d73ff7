"""Estimates of a participant's availability by hour, and of its speed."""

import pytest
from hypothesis import given

from atoll.server.sampling import History
from atoll.server.sampling.availability import (
    LEAST_CHANCE,
    chance_to_report,
    in_time_share,
    online_share,
    reporting_share,
)
from tests.server.sampling.test_samplers import HISTORIES

DAY_S = 86_400.0
HOUR_S = 3600.0


def online_at(*hours: int) -> History:
    return History(online_s=tuple(1000.0 if hour in hours else 0.0 for hour in range(24)))


@given(HISTORIES)
def test_a_chance_is_a_probability_and_never_nothing(known: History) -> None:
    for at, window_s in ((0.0, 1.0), (1.7e9, 600.0), (1e5, 1e7)):
        assert LEAST_CHANCE <= chance_to_report(known, at, window_s) <= 1


def test_a_newcomer_is_tried() -> None:
    assert chance_to_report(History(), 1.7e9, 600.0) == 1.0


@pytest.mark.parametrize(
    ("hour", "window_s", "share"),
    [
        (22.0, 600.0, 1.0),
        (12.0, 600.0, 0.0),
        (23.5, HOUR_S, 0.5),  # the window runs past midnight into an hour that it is not online
        (21.5, HOUR_S, 0.5),
        (0.0, 10 * DAY_S, 2 / 24),
    ],
)
def test_hours_of_the_window_are_held_against_the_best_hour(hour: float, window_s: float, share: float) -> None:
    assert online_share(online_at(22, 23), 19_000 * DAY_S + hour * HOUR_S, window_s) == pytest.approx(share)


def test_speed_is_the_share_of_reports_that_would_have_made_it() -> None:
    known = History(report_s=(10.0, 20.0, 40.0))
    assert [in_time_share(known, window_s) for window_s in (5.0, 20.0, 60.0)] == [0.25, 0.75, 1.0]


def test_reliability_is_the_share_of_draws_that_ended_with_a_report() -> None:
    assert reporting_share(History(times_selected=9, times_reported=4)) == 0.5
    assert reporting_share(History(times_selected=3, times_reported=5)) == 1.0
