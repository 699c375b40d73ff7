from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from atoll.operator import Run, Timeouts
from atoll.operator.calls import Calls
from atoll.operator.connecting import Target
from atoll.operator.errors import RunFailedError, UnreachableError
from atoll.server.cli import watch
from atoll.server.cli.formats import reason_lines, round_line, round_row, run_row, shortened
from atoll.server.cli.picture import Picture, sparkline
from atoll.server.cli.watch import LineSink, finish, follow
from atoll.server.control import MemberSummary, Progress, RoundSummary, RunDetail, RunSummary
from atoll.wire.v1 import control_pb2
from tests.server.cli.conftest import a_round as summary_of

if TYPE_CHECKING:
    pass


RUN = RunSummary("rabc", "digits", "running", "", 20, 12, 0.0, None, "")


def a_round(number: int, phase: str, remaining_s: float | None = None, reported: int = 6) -> RoundSummary:
    members = (MemberSummary("pa", "lab", "declined", "battery", 0, None),)
    metrics = {"server/accuracy": 0.9 + number / 1000}
    return RoundSummary(
        number, 0, "train", phase, "", 8, reported, 6, 8, 9, 0.0, 0.4, remaining_s, metrics, members, number
    )


def test_a_round_over_a_part_of_the_model_is_shown_as_such() -> None:
    whole = a_round(4, "released")
    part = replace(whole, fragment=1, fragments=3)
    assert round_line(part, 20) == round_line(whole, 20).replace("released,", "released, fragment 2 of 3,")
    assert (round_row(whole, ())[1], round_row(part, ())[1]) == ("train", "train 2/3")


def test_progress_counts_train_rounds_alone() -> None:
    """If every second of four rounds is followed by an evaluation, number five is the fourth train round."""
    train, evaluation = a_round(4, "released"), a_round(5, "released")
    assert round_line(replace(train, version=3), 4).startswith("[4/4] round 5 released, ")
    assert round_line(replace(evaluation, kind="evaluate", version=4), 4).startswith("[4/4] evaluation released, ")


def test_a_long_reason_is_cut_after_a_clause_or_a_word_and_told_whole_below() -> None:
    whole = "the privacy budget of population clinic has no room for the next round: epsilon 7.9 of 8 at delta 1e-6"
    run = replace(RUN, status="paused", reason=whole)
    assert run_row(run)[-1] == "the privacy budget of population clinic has no room for the next round…"
    assert list(reason_lines(run)) == [f"paused: {whole}"]
    assert run_row(replace(RUN, reason="no quorum"))[-1] == "no quorum"
    assert list(reason_lines(replace(RUN, reason="no quorum"))) == []
    assert shortened("draw of round 2: what is not there", 30) == "draw of round 2…"
    assert shortened("draw: what it was that could not be read", 30) == "draw: what it was that could…"
    assert shortened("x" * 50, 40) == f"{'x' * 39}…"


def test_the_picture_of_a_paused_run_says_why() -> None:
    picture = Picture(lambda: 0.0)
    picture.change(Progress(replace(RUN, status="paused", reason="no privacy left"), a_round(4, "created"), 8), 0.0)
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as captured:
        console.print(picture.render())
    assert "no privacy left" in captured.get()
    assert "waiting for participants" not in captured.get()


class Recorder(LineSink):
    def __init__(self) -> None:
        super().__init__()
        self.changes: list[str] = []
        self.notices: list[str] = []

    def change(self, progress: Progress) -> None:
        self.changes.append(progress.run.status)

    def notice(self, text: str) -> None:
        self.notices.append(text)


def followed(fake: Any, timeouts: Timeouts | None = None) -> Run:
    return Run(Calls(Target(fake.address, None), timeouts or Timeouts()), "rabc")


def change(status: int = control_pb2.RUN_STATUS_RUNNING) -> control_pb2.WatchRunResponse:
    run = control_pb2.RunSummary(run="rabc", status=control_pb2.RunStatus.ValueType(status))
    return control_pb2.WatchRunResponse(summary=run)


def test_following_goes_on_when_the_server_comes_back(fake: Any) -> None:
    fake.control.watches = [[change(), None], [change(), change(control_pb2.RUN_STATUS_FINISHED)]]
    sink = Recorder()
    assert follow(followed(fake), sink).status == "finished"
    assert sink.changes == ["running", "running", "finished"]
    assert "lost the server" in sink.notices[0]


def test_a_server_that_never_answered_is_reported_at_once(fake: Any) -> None:
    fake.control.watches = [[None]]
    with pytest.raises(UnreachableError):
        follow(followed(fake), Recorder())


def test_without_patience_a_lost_server_is_the_end(fake: Any) -> None:
    fake.control.watches = [[change(), None]]
    with pytest.raises(UnreachableError):
        follow(followed(fake, Timeouts(reconnect_s=0.0)), Recorder())


def test_only_new_rounds_are_fetched(
    fake: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "HISTORY_INTERVAL_S", 0.0)
    messages = [change() for _ in range(5)]
    for number, message in enumerate(messages):
        message.round.round = number
    fake.control.rounds = [summary_of(number, version=number) for number in range(4)]
    fake.control.watches = [[*messages, change(control_pb2.RUN_STATUS_FINISHED)]]
    follow(followed(fake), Recorder())
    first, *rest = [request.since for request in fake.control.asked]
    assert (first, set(rest)) == (0, {3}), "from the last round that is known"
    printed = [line.split(" released")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == [f"[{number}/2] round {number}" for number in range(1, 5)]


def test_each_round_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    sink = LineSink()
    first = a_round(0, "released")
    sink.history(RunDetail(RUN, (first, a_round(1, "open")), 0, ""))
    sink.history(RunDetail(RUN, (first, a_round(1, "abandoned")), 0, ""))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["[1/20] round 1 released", "[2/20] round 2 abandoned"]
    assert "1 declined" in lines[0]


def test_a_run_that_waits_for_participants_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    sink = LineSink()
    for connected in (2, 3, 8):
        sink.change(Progress(RUN, a_round(0, "created"), connected))
    assert capsys.readouterr().err.splitlines() == ["waiting for participants: 2 connected, 8 wanted"]
    picture = Picture(lambda: 0.0)
    picture.change(Progress(RUN, a_round(0, "created"), 2), 0.0)
    assert "waiting for participants, 8 wanted" in drawn(picture)


def test_a_run_that_waits_says_who_is_missing_once_the_server_does(capsys: pytest.CaptureFixture[str]) -> None:
    sink, why = LineSink(), "draw of round 1 waits: waiting for ward-7, which every round needs (cohort.required)"
    item = a_round(0, "created")
    for reason, connected in (("", 2), (why, 2), (why, 9), ("", 9)):
        sink.change(Progress(replace(RUN, reason=reason), item, connected))
    first = "waiting for participants: 2 connected, 8 wanted"
    assert capsys.readouterr().err.splitlines() == [first, f"{first}; {why}"]
    sink = LineSink()
    sink.change(Progress(replace(RUN, reason=why), item, 9))  # enough are there, but not the one that must be
    assert "ward-7" in capsys.readouterr().err


def test_a_run_that_did_not_finish_is_an_error() -> None:
    with pytest.raises(RunFailedError, match="run rabc running"):
        finish(RUN)


def drawn(picture: Picture) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(picture.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_counts_the_deadline_down() -> None:
    now = [100.0]
    picture = Picture(lambda: now[0])
    assert "waiting" in drawn(picture)
    picture.change(Progress(RUN, a_round(12, "open", remaining_s=30.0), 8), now[0])
    now[0] = 110.0
    text = drawn(picture)
    assert "12 of 20" in text
    assert "round 13" in text
    assert "open, 6 of 8 reported (quorum 6), 20 s to the deadline" in text
    part = replace(a_round(13, "open"), fragment=1, fragments=3)
    picture.change(Progress(RUN, part, 8), now[0])
    assert "open, fragment 2 of 3, 6 of 8 reported" in drawn(picture)


def test_the_picture_shows_the_rounds_before() -> None:
    picture = Picture(lambda: 0.0)
    picture.change(Progress(RUN, None, 8), 0.0)
    picture.history(RunDetail(RUN, tuple(a_round(number, "released") for number in range(12)), 8, ""))
    text = drawn(picture)
    assert "0.9110" in text
    assert "1 declined" in text
    assert "accuracy" in text


@pytest.mark.parametrize(("values", "bars"), [([1.0, 2.0, 3.0], "▁▅█"), ([2.0, 2.0], "██"), ([7.0], "█")])
def test_sparklines(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars
