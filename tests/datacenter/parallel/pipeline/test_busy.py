"""The measured share of waiting: by a clock that the test moves, and in a trained pipeline."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.pipeline.busy import BusyClock
from atoll.datacenter.parallel.pipeline.passes import PipelinePasses
from atoll.datacenter.train.build import make_passes
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import share, small
from tests.patience import WAIT_S


class Stage:
    """Takes the given time."""

    now_s = 0.0

    def forward_one_chunk(self, seconds: float) -> str:
        self.now_s += seconds
        return "done"

    backward_one_chunk = backward_weight_one_chunk = forward_one_chunk


def test_what_is_not_computing_is_waiting() -> None:
    stage = Stage()
    clock = BusyClock(torch.device("cpu"), lambda: stage.now_s)
    clock.listen(stage)
    assert clock.idle_share() == 0.0
    for _ in range(2):  # the last step alone counts
        with clock.step():
            assert stage.forward_one_chunk(1.0) == "done"
            stage.now_s += 2.0
            stage.backward_one_chunk(3.0)
            stage.backward_weight_one_chunk(2.0)
    assert clock.idle_share() == pytest.approx(2 / 8)


def measured(sections: dict[str, Any]) -> float:
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        passes = make_passes(job, spec_of(job.model), meshes, world.device)
        assert isinstance(passes, PipelinePasses)
        passes(share(job, meshes, 0), 1.0)
        return passes.idle_share()


def test_every_rank_says_the_mean() -> None:
    first, second = run_ranks(measured, 2, small(model={"layers": 4}, mesh={"pp": 2}, pipeline={"schedule": "zbv"}))
    assert first == second
    assert 0 < first < 1
