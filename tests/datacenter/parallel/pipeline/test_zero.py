"""Stages of ZeRO inside a pipeline: how often parameters are gathered and gradients scattered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.build import make_passes
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import method, share, small
from tests.patience import WAIT_S

GROUPS = 3
"""Units of sharding on a rank: two blocks, and the modules outside them."""
MICRO_BATCHES = 4


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the same
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counted[func.name()] += 1
        return func(*args, **(kwargs or {}))


def count(sections: dict[str, Any]) -> list[int]:
    """All-gathers and reduce-scatters of a step after the first, in which PyTorch also learns the shapes."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        passes = make_passes(job, spec_of(job.model), meshes, torch.device("cpu"))
        passes(share(job, meshes, 0), 1.0)
        with Counting() as mode:
            passes(share(job, meshes, 1), 1.0)
        return [
            sum(times for name, times in mode.counted.items() if name.startswith(f"c10d::{kind}"))
            for kind in ("_allgather_base_", "_reduce_scatter_base_")
        ]


@pytest.mark.parametrize(
    ("zero", "gathers"),
    [
        pytest.param("zero1", GROUPS, marks=pytest.mark.every_layout),
        ("zero2", GROUPS),
        # Blocks are given back after a forward pass, and kept after a backward pass for the next forward pass.
        ("zero3", (GROUPS - 1) * (MICRO_BATCHES + 1) + 1),
    ],
)
def test_gradients_meet_once_a_step(zero: str, gathers: int) -> None:
    """In every ZeRO stage whole gradients wait for the last micro-batch (here with 1F1B, two data-parallel ranks)."""
    job = small(model={"layers": 4}, mesh={"pp": 2}, batch={"micro_batch": 1}, data_parallel=method(zero))
    found = run_ranks(count, 4, job)
    assert found == [[gathers, GROUPS]] * 4
