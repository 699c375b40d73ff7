"""Joining a world without a launcher."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from atoll.datacenter.mesh import join_world
from atoll.datacenter.mesh.world import backend_of
from tests.patience import WAIT_S


def test_a_world_of_one_computes_and_leaves_the_environment_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started later must not take itself for rank 0 of this world."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with join_world(WAIT_S) as world:
        value = torch.ones(2)
        dist.all_reduce(value)
        assert (world.rank, world.size, world.local_rank) == (0, 1, 0)
        assert value.tolist() == [1.0, 1.0]
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("device", "on_host", "backend"),
    [("cpu", False, "gloo"), ("cpu", True, "gloo"), ("cuda", False, "nccl"), ("cuda", True, "cuda:nccl,cpu:gloo")],
)
def test_ranks_with_gpus_sum_host_memory_only_by_gloo(device: str, on_host: bool, backend: str) -> None:
    """``cpu_offload`` sums gradient norms of tensors in host memory, which NCCL refuses."""
    assert backend_of(device, on_host=on_host) == backend
