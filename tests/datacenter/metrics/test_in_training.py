"""Records of a job of two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from atoll.datacenter.job import SiloJob
from atoll.datacenter.machine import DATA_SHEETS, RatesError, save_rates
from atoll.datacenter.mesh import join_world
from atoll.datacenter.scaling import read_runs
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import train
from tests.datacenter.ranks import run_ranks
from tests.patience import WAIT_S

JOB: dict[str, Any] = {
    "job": {"name": "measured", "steps": 6},
    "model": {"layers": 2, "dim": 32, "heads": 4},
    "batch": {"sequence": 32, "global_batch": 4, "micro_batch": 2},
    "data_parallel": {"method": "ddp"},
    "metrics": {"every_steps": 2, "json_lines": "metrics.jsonl", "profile_steps": [3, 4], "rates": "rates.json"},
}


def train_and_tell(folder: str) -> int:
    with join_world(WAIT_S) as world:
        train(SiloJob.model_validate(JOB), Path(folder), world, Unwatched(), console=False)
    return dist.get_rank()


def test_records_add_up_and_a_trace_is_told_of_in_the_next_record(tmp_path: Path) -> None:
    save_rates(DATA_SHEETS["a100"], tmp_path / "rates.json")
    assert run_ranks(train_and_tell, 2, str(tmp_path)) == [0, 1]
    facts, *records = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (facts["run"]["world_size"], facts["run"]["layout"]) == (2, "dp_shard 2")
    assert facts["run"]["peak_flops_per_s"] == 19.5e12
    assert [(record["step"], record["steps"]) for record in records] == [(2, 2), (4, 2), (6, 2)]
    assert sum(record["tokens"] for record in records) == records[-1]["total_tokens"] <= 6 * 4 * 32
    assert [record["communication_share"] is not None for record in records] == [False, True, False]
    assert 0 < records[1]["communication_share"] < 1
    assert {path.name for path in (tmp_path / "traces").glob("*.gz")} == {
        "rank0-steps3-4.json.gz",
        "rank1-steps3-4.json.gz",
    }
    (run,) = read_runs([tmp_path / "metrics.jsonl"])
    assert (run.ranks, run.parameters) == (2, facts["run"]["parameters"])
    assert run.loss == pytest.approx(records[-1]["loss"])


def test_rates_that_are_not_there_end_it_before_training(tmp_path: Path) -> None:
    job = SiloJob.model_validate(JOB | {"metrics": {"rates": "h900"}})
    with join_world(WAIT_S) as world, pytest.raises(RatesError, match='no rates of "h900"'):
        train(job, tmp_path, world, Unwatched(), console=False)
