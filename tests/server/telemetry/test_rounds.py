from atoll.server.rounds import (
    Finish,
    Member,
    MemberStatus,
    Phase,
    Receipt,
    RecordRound,
    RoundKey,
    RoundKind,
    RoundState,
    RunState,
    RunStatus,
    Started,
    Verdict,
)
from atoll.server.rounds.effects import Effect
from atoll.server.rounds.roster import Roster
from atoll.server.runs.stepping import Entry, Played
from atoll.server.telemetry.rounds import RoundFigures
from tests.server.rounds.scenario import policy

KEY = RoundKey(0, 0)
MEMBERS = [Member("pa", 1, MemberStatus.REPORTED, at=14.0), Member("pb", 1, MemberStatus.TIMED_OUT, at=20.0)]
ENDED = RoundState(
    KEY,
    RoundKind.TRAIN,
    0,
    Phase.RELEASED,
    created_at=10.0,
    roster=Roster.of(MEMBERS),
    sampled_at=11.0,
    opened_at=11.5,
    closed_at=20.0,
    aggregated_at=21.0,
    charged_at=21.5,
    ended_at=22.0,
)


def counted(*effects: Effect) -> RoundFigures:
    state, figures = RunState("r1", policy(), "m"), RoundFigures()
    figures.stored(Entry(state, state, 0, (Played(Started(), 1.0, True, effects),)))
    return figures


def value(figures: RoundFigures, name: str, **labels: str) -> float | None:
    return figures.registry.get_sample_value(name, labels)


def test_a_round_is_counted_with_its_phases_and_members() -> None:
    figures = counted(RecordRound(ENDED))
    assert value(figures, "atoll_rounds_total", kind="train", outcome="released") == 1
    assert value(figures, "atoll_round_duration_seconds_sum", kind="train") == 12.0
    assert value(figures, "atoll_round_phase_duration_seconds_sum", kind="train", phase="collect") == 8.5
    assert value(figures, "atoll_round_members_total", status="timed_out") == 1
    assert value(figures, "atoll_report_duration_seconds_sum") == 2.5


def test_answers_ends_and_retries_are_counted() -> None:
    figures = counted(
        Receipt(KEY, "pa", Verdict.COUNTED, ""),
        Receipt(KEY, "pb", Verdict.LATE, ""),
        Finish(RunStatus.FAILED, "quorum"),
    )
    figures.retried("aggregation")
    assert value(figures, "atoll_reports_total", outcome="counted") == 1
    assert value(figures, "atoll_reports_total", outcome="late") == 1
    assert value(figures, "atoll_runs_ended_total", status="failed") == 1
    assert value(figures, "atoll_effect_retries_total", effect="aggregation") == 1


def test_commits_are_timed_and_their_failures_counted() -> None:
    figures = RoundFigures()
    figures.committed(5, 0.02, failed=False)
    figures.committed(1, 0.02, failed=True)
    assert value(figures, "atoll_commit_duration_seconds_count") == 2
    assert value(figures, "atoll_writes_total") == 6
    assert value(figures, "atoll_failed_commits_total") == 1


def test_names_of_runs_and_participants_are_no_labels() -> None:
    figures = counted(RecordRound(ENDED), Receipt(KEY, "pa", Verdict.COUNTED, ""))
    labels = {value for family in figures.registry.collect() for one in family.samples for value in one.labels.values()}
    assert not {"pa", "pb", "r1"} & labels


def test_what_alerts_watch_is_there_before_it_first_happens() -> None:
    figures = RoundFigures()
    assert value(figures, "atoll_runs_ended_total", status="failed") == 0
    assert value(figures, "atoll_rounds_total", kind="train", outcome="abandoned") == 0
    assert value(figures, "atoll_failed_commits_total") == 0
