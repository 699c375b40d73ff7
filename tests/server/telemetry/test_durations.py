"""The time of an attempt at a round, divided among its phases."""

from __future__ import annotations

from typing import Any

from atoll.server.rounds import Phase, RoundKey, RoundKind, RoundState
from atoll.server.telemetry.durations import phase_seconds


def attempt(**times: Any) -> RoundState:
    return RoundState(RoundKey(0, 0), RoundKind.TRAIN, 0, Phase.RELEASED, created_at=10.0, **times)


def test_the_time_of_a_round_is_divided_among_its_phases() -> None:
    whole = attempt(sampled_at=11, opened_at=11.5, closed_at=20, aggregated_at=21, charged_at=21.25, ended_at=22)
    expected = {"draw": 1.0, "prepare": 0.5, "collect": 8.5, "aggregate": 1.0, "charge": 0.25, "publish": 0.75}
    assert phase_seconds(whole) == expected
    assert list(phase_seconds(whole)) == list(expected)


def test_an_attempt_in_work_has_the_phases_that_are_over_and_an_abandoned_one_the_rest_in_its_last() -> None:
    assert phase_seconds(attempt()) == {}
    assert phase_seconds(attempt(sampled_at=11.0, opened_at=12.0)) == {"draw": 1.0, "prepare": 1.0}
    assert phase_seconds(attempt(sampled_at=11.0, ended_at=15.0)) == {"draw": 1.0, "prepare": 4.0}


def test_a_clock_that_was_set_back_makes_no_time_negative() -> None:
    assert phase_seconds(attempt(sampled_at=5.0, opened_at=6.0)) == {"draw": 0.0, "prepare": 1.0}
