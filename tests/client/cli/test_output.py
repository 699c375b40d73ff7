from __future__ import annotations

import io
import json
import re
import threading
from dataclasses import replace

import pytest

from atoll.client import RoundKey, events
from atoll.client.cli import output
from atoll.client.cli.output import HumanLines, JsonLines, bar, describe
from tests.patience import WAIT_S

KEY = RoundKey("r1", 2, 0)
EVERY = [
    events.Connected("h:1", "p1", "0.1"),
    events.Disconnected("refused", 1.5),
    events.Invited(KEY, "digits", "train", 8, 60.0),
    events.Declined(KEY, "policy: no"),
    events.Trained(KEY, 20, 1.25, {"loss": 0.123456}),
    events.Reported(KEY, "counted", 20),
    events.Stopped(KEY, "over-selected"),
    events.Failed(RoundKey("r1", 2, 1), "no data"),
    events.Renewed(7200.0),
    events.Finished("terminated", 3),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_for_people() -> None:
    assert [describe(event) for event in EVERY] == [
        "connected to h:1 as p1",
        "not connected: refused; next try in 1.5 s",
        "round 3: digits asks to train, cohort 8, 60 s left",
        "round 3: declined: policy: no",
        "round 3: worked on 20 examples for 1.2 s: loss 0.1235",
        "round 3: reported weight 20: counted",
        "round 3: stopped: over-selected",
        "round 3 (attempt 2): failed: no data",
        "certificate renewed for 2.0 h",
        "finished after 3 reports: terminated",
    ]


def test_counts_are_shown_as_whole_numbers() -> None:
    said = describe(events.Trained(KEY, 20479, 2.0, {"tokens": 20479.0, "loss": 2.0, "share": 0.00012345}))
    assert said == "round 3: worked on 20,479 examples for 2.0 s: tokens 20,479, loss 2, share 0.0001234"


def test_a_round_of_statistics_is_shown_in_plain_words() -> None:
    invited = next(event for event in EVERY if isinstance(event, events.Invited))
    assert describe(replace(invited, kind="statistics")) == "round 3: digits asks for statistics, cohort 8, 60 s left"
    assert describe(events.Trained(KEY, 1, 0.0, {})) == "round 3: worked on 1 example for 0.0 s"


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show = JsonLines()
    for event in EVERY:
        show(event)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == [event.name for event in EVERY]
    assert all(line["at"] > 1.6e9 for line in lines)
    assert lines[4]["metrics"] == {"loss": 0.123456}


def test_progress_takes_a_line_a_second(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr(output, "now_s", lambda: now[0])
    show = JsonLines()
    for seconds, done in [(0.0, 1), (0.5, 2), (1.2, 3), (1.3, 4), (1.4, 10)]:
        now[0] = 100.0 + seconds
        show(events.Transferred(KEY, "upload", done, 10))
    assert [json.loads(line)["done_bytes"] for line in capsys.readouterr().out.splitlines()] == [1, 3, 10]


def test_a_bar_for_transfers_over_a_second(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr(output, "now_s", lambda: now[0])
    terminal = Terminal()
    lines = HumanLines(terminal)
    for seconds, done in [(0.0, 1), (0.5, 2), (1.2, 5_000_000), (1.25, 6_000_000), (1.4, 9_000_000)]:
        now[0] = 100.0 + seconds
        lines(events.Transferred(KEY, "download", done, 10_000_000))
    assert terminal.getvalue().count("\r") == 2
    assert "download [###############...............]  50% 5 of 10 MB" in terminal.getvalue()
    lines(events.Transferred(KEY, "download", 10_000_000, 10_000_000))
    assert terminal.getvalue().endswith("\r\033[K")
    assert capsys.readouterr().out == ""


def test_there_is_no_progress_bar_without_a_terminal() -> None:
    stream = io.StringIO()
    lines = HumanLines(stream)
    lines(events.Transferred(KEY, "upload", 1, 2))
    assert stream.getvalue() == ""


def test_an_empty_transfer_is_whole() -> None:
    assert "0 of 0 MB" in bar(events.Transferred(KEY, "upload", 0, 0))


HOSTILE = "\x1b]0;owned\x07\n12:00:00 round 1: reported\u202e\x9b31m"


@pytest.mark.parametrize(
    "event",
    [
        events.Connected(HOSTILE, HOSTILE, HOSTILE),
        events.Disconnected(HOSTILE, 1.5),
        events.Invited(KEY, HOSTILE, HOSTILE, 8, 60.0),
        events.Declined(KEY, HOSTILE),
        events.Trained(KEY, 20, 1.25, {HOSTILE: 0.5}),
        events.Reported(KEY, HOSTILE, 20),
        events.Stopped(KEY, HOSTILE),
        events.Failed(KEY, HOSTILE),
        events.Finished(HOSTILE, 3),
    ],
)
@pytest.mark.parametrize("lines", [HumanLines, JsonLines])
def test_what_a_server_says_does_nothing_to_the_participants_terminal(
    event: events.Event, lines: type[HumanLines | JsonLines], capsys: pytest.CaptureFixture[str]
) -> None:
    lines()(event)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable()


class Counted(Terminal):
    """Knows that it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_seconds_are_counted_on_a_terminal_while_something_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Counted()
    with HumanLines(terminal).during("loading mine:Site"):
        assert capsys.readouterr().out.endswith("loading mine:Site\n"), "before anything is counted"
        assert terminal.written.wait(WAIT_S)
    assert re.fullmatch(r"(\r\d+ s)+\r\x1b\[K", terminal.getvalue())


def test_elsewhere_nothing_is_counted_and_json_has_no_line(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    quiet = io.StringIO()
    with HumanLines(quiet).during("loading mine:Site"):
        pass
    assert quiet.getvalue() == ""
    capsys.readouterr()
    with caplog.at_level("INFO", "atoll.client"), JsonLines().during("loading mine:Site"):
        assert "loading mine:Site" in caplog.text
    assert capsys.readouterr().out == ""
