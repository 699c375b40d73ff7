"""Runs read from training's files, and from your own lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.datacenter.metrics import JsonLines
from atoll.datacenter.scaling import MeasuredRun, ScalingError, read_runs
from tests.datacenter.metrics.records import EVALUATION, FACTS, record


def test_a_file_that_training_wrote_is_one_run(tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    sink = JsonLines(path, FACTS)
    for step in range(1, 41):
        seconds = 100.0 if step == 1 else 2.0
        sink.step(record(step=step, steps=1, tokens=64, total_tokens=64 * step, seconds=seconds, loss=5 - step / 16))
    sink.evaluated(EVALUATION)
    sink.close()
    (run,) = read_runs([path])
    assert run == MeasuredRun(
        name="small",
        ranks=2,
        parameters=1000,
        tokens=64 * 40,
        loss=(2.5625 + 2.5) / 2,
        tokens_per_s=32.0,
        tokens_per_step=64.0,
    )


def test_steps_that_were_done_again_after_a_restart_count_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for first, loss in ((1, 4.0), (2, 3.0)):
        sink = JsonLines(path, FACTS)
        for step in (first, first + 1):
            sink.step(record(step=step, steps=1, total_tokens=64 * step, loss=loss))
        sink.close()
    (run,) = read_runs([path])
    assert (run.tokens, run.loss) == (192, 3.0)


def test_other_lines_are_runs_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    lines = [{"name": "a", "parameters": 1e6, "tokens": 1e8, "loss": 3.5}, {"name": "b", "ranks": 4}]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    assert [(run.name, run.ranks, run.loss) for run in read_runs([path, path])] == [
        ("a", None, 3.5),
        ("b", 4, None),
    ] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no run; training writes such files with metrics.json_lines"),
        ("3", "a.jsonl:1: int; a line must be an object"),
        ("\n{", "a.jsonl:2: not JSON"),
        ('{"name": "a", "loss": -1}', "a.jsonl:1: loss: Input should be greater than 0"),
        ('{"name": "a", "speed": 1}', "a.jsonl:1: speed: Extra inputs are not permitted"),
        ('{"step": 1, "steps": 1}', "a.jsonl:1: loss: Field required"),
        ('{"step":1,"steps":1,"loss":1,"tokens":1,"total_tokens":1,"seconds":1}', "records without a line"),
    ],
)
def test_what_is_no_run_is_refused_naming_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(ScalingError, match=message):
        read_runs([path])
