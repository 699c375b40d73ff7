"""The training loop on real data: one job on one rank and on two, stopped and resumed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import train
from tests.datacenter.ranks import run_ranks
from tests.patience import WAIT_S

JOB: dict[str, Any] = {
    "job": {"name": "bytes", "steps": 6, "seed": 3},
    "model": {"layers": 2, "dim": 32, "heads": 2},
    "batch": {"sequence": 32, "global_batch": 4, "micro_batch": 1},
    "metrics": {"every_steps": 2, "json_lines": "log.jsonl"},
}


class StopsAfter(Unwatched):
    """Ends the job after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stops_after(self, step: int) -> bool:
        return step == self._step


def run(folder: str, sections: dict[str, Any], stop: int) -> dict[str, Any]:
    with join_world(WAIT_S) as world:
        return asdict(train(SiloJob.model_validate(sections), Path(folder), world, StopsAfter(stop), console=False))


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "run" not in line]


def test_two_ranks_learn_what_one_does(tmp_path: Path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    (one,) = run_ranks(run, 1, str(alone), JOB, -1)
    two = run_ranks(run, 2, str(both), JOB, -1)
    assert one["steps"] == one["total_steps"] == 6
    assert one["tokens"] == 6 * 4 * 32
    assert two[0] == two[1]
    assert two[0]["loss"] == pytest.approx(one["loss"], abs=2e-6)
    found, wanted = records(both), records(alone)
    assert [record["step"] for record in found] == [2, 4, 6]
    assert [record["loss"] for record in found] == pytest.approx([record["loss"] for record in wanted], abs=2e-6)
    assert wanted[-1]["loss"] < wanted[0]["loss"]


def test_a_job_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    kept = {**JOB, "checkpoint": {"folder": "checkpoints", "every_steps": 100}}
    (whole,) = run_ranks(run, 1, str(tmp_path / "whole"), JOB, -1)
    (first,) = run_ranks(run, 1, str(tmp_path / "stopped"), kept, 3)
    assert (first["steps"], first["resumed_at"]) == (3, None)
    (second,) = run_ranks(run, 1, str(tmp_path / "stopped"), kept, -1)
    assert second == {**whole, "resumed_at": 3}
    (third,) = run_ranks(run, 1, str(tmp_path / "stopped"), kept, -1)
    assert third == {**whole, "resumed_at": 6, "loss": None}
