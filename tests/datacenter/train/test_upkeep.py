"""Gradient hooks, comparisons and uneven shares under the whole trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.parallel.uneven import EVERY_STEPS
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import open_trainer, train
from tests.datacenter.ranks import run_ranks
from tests.patience import WAIT_S

JOB: dict[str, Any] = {
    "job": {"name": "upkeep", "steps": 5, "seed": 3},
    "model": {"layers": 1, "dim": 32, "heads": 2},
    "batch": {"sequence": 16, "global_batch": 4, "micro_batch": 1},
}


class StopsAfter(Unwatched):
    """Ends the job after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stops_after(self, step: int) -> bool:
        return step == self._step


def run(folder: str, sections: dict[str, Any], stop: int = -1) -> float | None:
    with join_world(WAIT_S) as world:
        job = SiloJob.model_validate({**JOB, **sections})
        return train(job, Path(folder), world, StopsAfter(stop), console=False).loss


def test_what_a_hook_has_left_over_is_in_checkpoints(tmp_path: Path) -> None:
    """Signs leave the largest residuals: a resumed job without them would reach another loss."""
    hook = {"data_parallel": {"method": "ddp", "hook": "sign", "check_replicas_every": 2}}
    kept = {**hook, "checkpoint": {"folder": "checkpoints", "every_steps": 100}}
    whole = run_ranks(run, 2, str(tmp_path / "whole"), hook)
    run_ranks(run, 2, str(tmp_path / "stopped"), kept, 3)
    assert run_ranks(run, 2, str(tmp_path / "stopped"), kept) == whole


def test_uneven_shares_change_nothing(tmp_path: Path) -> None:
    """Holds for any speeds of the ranks."""
    job = {**JOB["job"], "steps": EVERY_STEPS + 4}
    even = {"job": job, "data_parallel": {"method": "ddp"}}
    uneven = {"job": job, "data_parallel": {"method": "ddp", "uneven": True}}
    wanted = run_ranks(run, 1, str(tmp_path), even)[0]
    assert run_ranks(run, 3, str(tmp_path), uneven) == pytest.approx([wanted] * 3, abs=2e-6)


def compared_under_tp(folder: str) -> dict[str, Any]:
    """Compare a tp group's copies, then again with a bit of rank 1's first norm flipped."""
    job = SiloJob.model_validate({**JOB, "mesh": {"tp": 2}, "data_parallel": {"check_replicas_every": 1}})
    with (
        join_world(WAIT_S) as world,
        open_trainer(job, Path(folder), world, Unwatched(), console=False) as trainer,
    ):
        trainer.advance()
        if world.rank == 1:
            norm = trainer.step.passes.parts[0].get_parameter("blocks.0.attention_norm.weight")
            local = norm.to_local() if isinstance(norm, DTensor) else norm
            with torch.no_grad():
                local[0] = torch.nextafter(local[0], torch.tensor(9.0))
        with pytest.raises(TrainingError) as caught:
            trainer.upkeep.after_step(2)
        (copies,) = trainer.upkeep.copies
        return {"compared": [name for name, _ in copies.named], "says": str(caught.value)}


def test_ranks_of_a_tp_group_compare_what_each_holds_whole(tmp_path: Path) -> None:
    """Norms are copies; matrices are cut, and differ."""
    for found in run_ranks(compared_under_tp, 2, str(tmp_path)):
        norms = {"blocks.0.attention_norm.weight", "blocks.0.ffn_norm.weight", "norm.weight"}
        assert set(found["compared"]) == norms
        assert found["says"].startswith("step 2: replicas differ first in blocks.0.attention_norm.weight: rank 1 of 2")
