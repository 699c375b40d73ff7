from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from atoll.simulation import (
    Aggregation,
    Behaviour,
    Cohort,
    FedAdam,
    Federation,
    Job,
    Result,
    RunFailedError,
    SetupError,
    Straggler,
)
from tests.simulation.test_federation import MODEL, Stepping


def played(behaviour: Behaviour, population: int = 4, rounds: int = 1, **sections: Any) -> Result:
    job = Job(rounds=rounds, **{"cohort": Cohort(size=population, seed=1), **sections})
    return Federation(participants=Stepping, population=population, behaviour=behaviour).run(job, initial=MODEL)


def statuses(result: Result, attempt: int = 0) -> dict[str, str]:
    return {one.participant: one.status for one in result.detail().rounds[attempt].members}


def test_a_round_takes_as_long_as_its_slowest_member() -> None:
    result = played(Behaviour(speed=lambda number, _: 10.0 * (1 + number)))
    assert result.history[0].duration_s == 40.0
    reported = {one.participant: one.report_s for one in result.detail().rounds[0].members}
    assert reported == {"p0": 10.0, "p1": 20.0, "p2": 30.0, "p3": 40.0}


def test_over_selection_takes_the_fastest() -> None:
    cohort = Cohort(size=2, over_selection=2.0)
    result = played(Behaviour(speed=lambda number, _: 40.0 - 10 * number), cohort=cohort)
    assert statuses(result) == {"p0": "over_selected", "p1": "over_selected", "p2": "reported", "p3": "reported"}
    assert result.history[0].duration_s == 20.0


def test_members_beyond_the_deadline_are_timed_out() -> None:
    straggler, cohort = Straggler(report_window_s=25.0), Cohort(size=4, quorum=2)
    result = played(Behaviour(speed=lambda number, _: 10.0 * (1 + number)), straggler=straggler, cohort=cohort)
    assert statuses(result) == {"p0": "reported", "p1": "reported", "p2": "timed_out", "p3": "timed_out"}
    assert result.history[0].duration_s == 25.0


@pytest.mark.parametrize("workers", [0, 2])
def test_late_reports_are_carried_to_a_later_round(workers: int) -> None:
    job = Job(rounds=4, cohort=Cohort(size=2, over_selection=2.0), straggler=Straggler(late="carry"))
    behaviour = Behaviour(speed=lambda number, _: 10.0 * (1 + number))
    federation = Federation(participants=Stepping, population=4, behaviour=behaviour)
    result = federation.run(job, initial=MODEL, workers=workers)
    details = [member.detail for attempt in result.detail().rounds for member in attempt.members]
    assert any("late; counted in round 3 with staleness" in detail for detail in details)
    assert result.digest == federation.run(job, initial=MODEL).digest


CROWDED = Job(
    rounds=4,
    cohort=Cohort(size=5, over_selection=1.6, quorum=3, seed=3),
    straggler=Straggler(late="carry", report_window_s=25.0),
    optimiser=FedAdam(lr=0.05),
    aggregation=Aggregation(encoding="int8"),
)
CROWD = Behaviour(speed=lambda number, _: 10.0 * (1 + number % 3), dropout=0.2, seed=4)
"""Played with this, late reports, deadlines and returning participants of ``CROWDED`` meet at the same moments."""


def test_what_happens_at_one_moment_has_the_same_order_for_any_number_of_workers(
    request: pytest.FixtureRequest,
) -> None:
    numbers = (0, 1, 3) if request.config.getoption("every_case") else (0, 3)
    federation = Federation(participants=Stepping, population=12, behaviour=CROWD)
    results = [federation.run(CROWDED, initial=MODEL, workers=workers) for workers in numbers]
    assert len({result.digest for result in results}) == 1
    attempts = [[statuses(result, number) for number in range(len(result.history))] for result in results]
    assert attempts[0] == attempts[1]


def test_a_missed_quorum_is_tried_again_after_the_delay() -> None:
    straggler = Straggler(report_window_s=15.0, retry_delay_s=100.0)
    behaviour = Behaviour(speed=lambda number, _: 10.0 if number < 2 else 20.0)
    with pytest.raises(RunFailedError, match="quorum 3 was missed"):
        played(behaviour, straggler=straggler)


def test_participants_are_waited_for_until_they_are_there() -> None:
    result = played(Behaviour(availability=lambda number: [(100.0 * number, math.inf)]))
    assert result.virtual_s >= 300.0
    assert result.history[0].reported == 4


def test_a_report_waits_until_its_participant_is_back() -> None:
    behaviour = Behaviour(
        speed=10.0, availability=lambda number: [(0, 5), (50, math.inf)] if number == 3 else [(0, 999)]
    )
    result = played(behaviour)
    assert {one.participant: one.report_s for one in result.detail().rounds[0].members}["p3"] == 50.0


def test_dropouts_follow_from_the_seed() -> None:
    def gone(seed: int) -> list[dict[str, str]]:
        behaviour = Behaviour(speed=10.0, dropout=0.3, seed=seed)
        result = played(behaviour, population=10, rounds=3, cohort=Cohort(size=10, quorum=3))
        return [statuses(result, place) for place in range(len(result.history))]

    assert gone(1) == gone(1)
    assert gone(1) != gone(2)
    assert any("silent" in one.values() for one in gone(1))


def test_a_run_without_participants_fails() -> None:
    with pytest.raises(RunFailedError, match="0 participants are connected, and nothing changes"):
        played(Behaviour(availability=lambda _: []))


def test_a_trace_says_who_is_there_and_how_fast(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("participant,online_s,offline_s,task_s\np0,0,,5\np1,10,100,7\np1,200,,7\n")
    result = played(Behaviour.of_trace(path, 2), population=2)
    assert {one.participant: one.report_s for one in result.detail().rounds[0].members} == {"p0": 5.0, "p1": 7.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("participant,online_s\np0,1\n", "trace.csv:1: has no column offline_s"),
        ("participant,online_s,offline_s\np0,0,1\n", "has no row for 1 participants, the first is 'p1'"),
        (
            "participant,online_s,offline_s\np7,0,1\n",
            "trace.csv:2: participant 'p7' is not in the population, whose names are p0 to p1",
        ),
        ("participant,online_s,offline_s\np0,x,1\n", "trace.csv:2: 'x' is not a number of seconds"),
        ("participant,online_s,offline_s\np0,5,1\np1,0,1\n", "participant 'p0': connected from 5 to 1 s"),
        ("participant,online_s,offline_s\np0,0,9\np0,5,12\np1,0,1\n", "participant 'p0': connected from 5 to 12 s"),
    ],
)
def test_a_trace_with_holes_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(SetupError, match=message):
        Behaviour.of_trace(tmp_path / "trace.csv", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dropout": 1.0}, "dropout = 1.0"), ({"speed": -1.0}, "speed = -1.0"), ({"back_s": 0.0}, "back_s = 0.0")],
)
def test_behaviour_out_of_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        Behaviour(**options)
