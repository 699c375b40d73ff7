"""Sinks: what they write, and what happens when one fails."""

from __future__ import annotations

import io
import json
import logging
import math
from pathlib import Path

import pytest
from rich.console import Console

from atoll.datacenter.metrics import Evaluation, JsonLines, Sinks, StepRecord
from atoll.datacenter.metrics.console import ConsoleLines, evaluation_line, line, size
from tests.datacenter.metrics.records import EVALUATION, FACTS, RECORD, record


class Recorder:
    """Keeps records; fails at the given steps."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.steps: list[int] = []
        self.evaluations: list[int] = []
        self.closed = 0

    def step(self, shown: StepRecord) -> None:
        if shown.step in self.failing:
            raise OSError(28, "No space left on device")
        self.steps.append(shown.step)

    def evaluated(self, shown: Evaluation) -> None:
        if shown.step in self.failing:
            raise OSError(28, "No space left on device")
        self.evaluations.append(shown.step)

    def close(self) -> None:
        self.closed += 1


def test_a_sink_that_fails_is_given_up_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Recorder(), Recorder(2)
    with caplog.at_level(logging.WARNING), Sinks([bad, good]) as sinks:
        for step in (1, 2, 3):
            sinks.step(record(step=step))
    assert (good.steps, bad.steps) == ([1, 2, 3], [1])
    assert (good.closed, bad.closed) == (1, 1)
    assert "step 2: no more metrics to Recorder: [Errno 28] No space left on device" in caplog.text


def test_json_lines_hold_the_facts_then_every_field_and_are_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a.jsonl"
    for step in (7, 8):
        with Sinks([JsonLines(path, FACTS)]) as sinks:
            sinks.step(record(step=step, loss=math.nan if step == 8 else 3.25))
            assert len(path.read_text().splitlines()) == 2 * (step - 6), "a line is there before the file is closed"
    facts, first, again, second = map(json.loads, path.read_text().splitlines())
    assert facts == again
    assert facts["run"]["parameters"] == 1000
    assert (first["step"], first["tokens"], first["grad_norm"], first["bubble_share"]) == (7, 8192, 1.5, None)
    assert second["loss"] is None, "JSON has no NaN"


def test_an_evaluation_reaches_every_sink_that_works(tmp_path: Path) -> None:
    good, bad, path = Recorder(), Recorder(7), tmp_path / "a.jsonl"
    with Sinks([bad, good, JsonLines(path, FACTS)]) as sinks:
        sinks.evaluated(EVALUATION)
    assert (good.evaluations, bad.evaluations, bad.closed) == ([7], [], 1)
    answer = json.loads(path.read_text().splitlines()[1])["evaluation"]
    assert answer == {"step": 7, "loss": 2.0, "tokens": 2048, "seconds": 1.25, "perplexity": math.exp(2)}


def test_an_evaluation_is_a_line() -> None:
    wanted = "step   7/100  held-out loss 2.0000  perplexity 7.389  (2,048 tokens in 1.2 s)"
    assert evaluation_line(EVALUATION, FACTS) == wanted
    assert math.isinf(Evaluation(1, 1e4, 1, 0.0).perplexity)
    written = io.StringIO()
    sink = ConsoleLines(FACTS, Console(file=written, highlight=False))
    sink.evaluated(EVALUATION)
    sink.close()
    assert written.getvalue() == wanted + "\n"


def test_a_line_shows_what_is_known() -> None:
    assert line(RECORD, FACTS) == (
        "step   7/100  loss 3.2500  lr 0.0003  gradient 1.5  4,096 tokens/s  MFU 1.2%  memory 123 MB  data wait 25.0%"
    )
    answer = line(record(grad_norm=None, bubble_share=0.125, communication_share=0.25, expert_load=1.5), FACTS)
    assert answer.endswith("data wait 25.0%  bubble 12.5%  communication 25.0% (traced)  busiest expert 1.50x")
    assert line(record(loss_scale=1024.0), FACTS).endswith("data wait 25.0%  loss scale 1024")
    assert "gradient" not in answer


def test_sizes_are_short() -> None:
    answer = [size(count) for count in (0, 999, 1000, 999_600, 12_345_678, 3e9, 3e15)]
    assert answer == ["0 B", "999 B", "1 kB", "1 MB", "12.3 MB", "3 GB", "3e+03 TB"]


def test_the_console_prints_whole_lines_into_a_pipe() -> None:
    written = io.StringIO()
    sink = ConsoleLines(FACTS, Console(file=written, highlight=False))
    sink.step(RECORD)
    sink.close()
    assert written.getvalue() == line(RECORD, FACTS) + "\n"


def test_the_console_of_a_terminal_has_a_bar_that_goes() -> None:
    written = io.StringIO()
    sink = ConsoleLines(FACTS, Console(file=written, force_terminal=True, width=200, highlight=False))
    sink.step(RECORD)
    sink.close()
    assert "7/100" in written.getvalue()
    assert line(RECORD, FACTS) in written.getvalue()
