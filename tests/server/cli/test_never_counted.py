"""A participant that fails in every round is named: by ``run watch``, ``run show`` and their JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll.operator.run_job import has_secret_draw
from atoll.server.cli.formats import closing_lines, round_line
from atoll.server.cli.run import run
from atoll.server.control import MemberSummary, RoundSummary, RunDetail
from atoll.server.control.names import names_of
from atoll.server.control.never_counted import NeverCounted, never_counted
from atoll.wire.v1 import control_pb2
from tests.server.cli.conftest import Fake, Invoke, a_round, json_of, summary
from tests.server.cli.test_watch import RUN

WHY = "fit raised ValueError (its text stays in the participant's log)"
PRIVATE = """
[job]
name = "p"
rounds = 2
[model]
initial = "init.safetensors"
[cohort]
size = 2
sampler = "poisson"
rate = 0.5
[straggler]
report_window_s = 3
[aggregation]
weighting = "uniform"
[privacy]
population = "clinic"
epsilon = 8.0
delta = 1e-6
clip = 0.5
"""


def member(name: str, status: str = "reported", detail: str = "") -> MemberSummary:
    return MemberSummary(name, "lab", status, detail, 0, None)


def attempt(number: int, *members: MemberSummary, phase: str = "released") -> RoundSummary:
    counted = sum(one.counted for one in members)
    return RoundSummary(
        number, 0, "train", phase, "", len(members), counted, 3, 4, 9, 0.0, 0.4, None, {}, tuple(members), number
    )


FAILING = member("pd", "failed", WHY)
ROUNDS = (
    attempt(0, member("pa"), member("pb", "late"), member("pc"), FAILING),
    attempt(1, member("pa"), member("pb"), member("pc"), FAILING),
    attempt(2, member("pe", "stopped"), phase="abandoned"),
)


def test_who_was_asked_and_never_counted() -> None:
    assert never_counted(ROUNDS) == (NeverCounted("pd", "lab", 2, "failed", WHY),)
    assert list(closing_lines(ROUNDS, secret=False)) == [
        f"never counted: pd, in 2 rounds, lastly failed: {WHY}",
    ]


def test_a_rounds_line_names_a_few() -> None:
    assert f"1 late (pb), 1 failed (pd: {WHY})" in round_line(ROUNDS[0], 3)
    many = attempt(0, member("pa"), *(member(f"p{number}", "timed_out") for number in range(9)))
    assert "9 timed out (p0; p1; p2; 6 more)" in round_line(many, 3)


def at(organisation: str, name: str, status: str = "reported", detail: str = "") -> MemberSummary:
    return replace(member(name, status, detail), organisation=organisation)


def test_organisations_stand_for_their_only_participant() -> None:
    first = attempt(0, at("north", "pa", "failed", "KeyError"), at("south", "pb"), at("east", "pc", "timed_out"))
    second = attempt(1, at("north", "pa", "failed", "KeyError"), at("south", "pd", "silent"), at("east", "pc"))
    assert "1 failed (north: KeyError), 1 timed out (east)" in round_line(first, 3)
    assert "1 silent (south/pd)" in round_line(second, 3, names=names_of((first, second)))
    assert list(closing_lines((first, second), secret=False)) == [
        "did not count in some rounds: east in 1 of 2 (lastly timed out)",
        "never counted: north (pa), in 2 rounds, lastly failed: KeyError",
        "never counted: south/pd, in 1 round, lastly silent",
    ]


def test_members_of_a_round_in_work_keep_the_names_of_earlier_rounds() -> None:
    ended = attempt(0, at("north", "pa"), at("south", "pb"))
    live = attempt(1, at("", "pa", "training"), at("", "pb", "training"), phase="open")
    assert names_of((ended, live)) == {"pa": "north", "pb": "south"}


def test_members_that_were_stopped_with_their_round_are_counted_and_not_named() -> None:
    given_up = attempt(0, at("north", "pa", "failed", "KeyError"), at("south", "pb", "stopped", "x"), phase="abandoned")
    assert "1 failed (north: KeyError), 1 stopped" in round_line(given_up, 3)
    assert "south" not in round_line(given_up, 3)


def test_who_was_missing_from_abandoned_attempts_is_named_too() -> None:
    given_up = attempt(0, member("pa", "failed", WHY), member("pb", "stopped"), phase="abandoned")
    assert [one.participant for one in never_counted((given_up,))] == ["pa"]


def test_one_that_counted_in_evaluations_alone_never_counted() -> None:
    """No model has learned from it."""
    trained = attempt(0, member("pa"), member("pd", "failed", WHY))
    evaluated = replace(attempt(1, member("pa"), member("pd")), kind="evaluate")
    assert [one.participant for one in never_counted((trained, evaluated))] == ["pd"]
    lines = list(closing_lines((trained, evaluated), secret=False))
    assert [line for line in lines if "pd" in line] == [f"never counted: pd, in 1 round, lastly failed: {WHY}"]
    assert not never_counted((replace(trained, kind="evaluate"), evaluated))


def test_a_skipped_evaluation_is_named_with_its_reason() -> None:
    tried = replace(attempt(2, member("pa", "failed", WHY), phase="abandoned"), kind="evaluate", reason="quorum 3")
    again = replace(tried, attempt=1, reason="quorum 4")
    (line, *_) = closing_lines((*ROUNDS[:2], tried, again), secret=False)
    assert line == "no evaluation after 2 rounds: it was skipped because quorum 4"
    released = replace(again, phase="released")
    assert not any("no evaluation" in one for one in closing_lines((tried, released), secret=False))


def test_a_line_says_of_which_model_a_metric_is() -> None:
    metrics = {"eval/accuracy": 0.5, "train/loss": 1.0}
    train = replace(attempt(0, member("pa")), metrics=metrics)
    assert "accuracy 0.5000 of the model before, loss 1.0000 in training" in round_line(train, 3)
    released = replace(train, metrics={"server/accuracy": 0.5, "server/loss": 1.0} | metrics)
    assert "accuracy 0.5000, loss 1.0000" in round_line(released, 3)
    evaluated = replace(train, kind="evaluate", metrics={"eval/accuracy": 0.5})
    assert "accuracy 0.5000" in round_line(evaluated, 3)
    assert "before" not in round_line(evaluated, 3)


def test_of_a_secret_draw_no_name_is_shown() -> None:
    detail = RunDetail(RUN, ROUNDS, 4, PRIVATE)
    assert has_secret_draw(detail)
    assert not has_secret_draw(replace(detail, job_toml=PRIVATE.partition("[privacy]")[0]))
    lines = [round_line(ROUNDS[0], 3, named=False), *closing_lines(ROUNDS, secret=True)]
    assert not any("pd" in line or "pb" in line for line in lines)
    assert "1 failed" in lines[0]
    assert "the draw is secret" in lines[1]


def failing_run(fake: Fake) -> None:
    def of(name: str, status: str) -> control_pb2.MemberSummary:
        own = "lab" if name == "pd" else "clinic"
        return control_pb2.MemberSummary(participant=name, organisation=own, status=status, detail="fit raised X")

    members = [of("pa", "reported"), of("pd", "failed")]
    fake.control.rounds = [a_round(number, members=members) for number in range(2)]
    fake.control.job_toml = PRIVATE.partition("[privacy]")[0]
    fake.control.status = control_pb2.RUN_STATUS_FINISHED
    ended = summary(control_pb2.RUN_STATUS_FINISHED, released=2)
    fake.control.watches.append([control_pb2.WatchRunResponse(summary=ended, connected=2)])


@pytest.mark.parametrize("command", ["show", "watch"])
def test_the_commands_say_so(fake: Fake, invoke: Invoke, command: str) -> None:
    failing_run(fake)
    result = invoke(run, command, "rabc")
    assert result.exit_code == 0, result.output
    assert "never counted: lab (pd), in 2 rounds, lastly failed: fit raised X" in result.output


def test_json_says_so(fake: Fake, invoke: Invoke) -> None:
    failing_run(fake)
    found: Any = json_of(invoke(run, "show", "rabc", "--members", "--json"))
    expected = {"participant": "pd", "organisation": "lab", "rounds": 2, "status": "failed", "detail": "fit raised X"}
    assert found["never_counted"] == [expected]
