"""What FSDP gathers together: each block, what comes before the blocks, and what comes after them."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.apply import make_bare
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import method, small_in_two
from tests.patience import WAIT_S


def units(sections: dict[str, Any]) -> list[str]:
    """Names of the modules that are units, or part of one with others."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), "cpu")
        module = make_bare(job, spec_of(job.model), meshes, torch.device("cpu"))
        return [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]


def test_blocks_and_both_ends_are_units() -> None:
    (found,) = run_ranks(units, 1, small_in_two(1, data_parallel=method("zero3")))
    assert found == ["", "tok_embeddings", "blocks.0", "blocks.1", "norm", "output"]


def test_tied_ends_stay_with_the_rest() -> None:
    tied: dict[str, Any] = {"model": {"tied_embeddings": True}}
    (found,) = run_ranks(units, 1, small_in_two(1, **tied, data_parallel=method("zero3")))
    assert found == ["", "blocks.0", "blocks.1"]
