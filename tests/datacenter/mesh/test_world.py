"""Joining a world without a launcher."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from atoll.datacenter.mesh import join_world


def test_a_world_of_one_computes_and_leaves_the_environment_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started later must not take itself for rank 0 of this world."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with join_world(60.0) as world:
        value = torch.ones(2)
        dist.all_reduce(value)
        assert (world.rank, world.size, world.local_rank) == (0, 1, 0)
        assert value.tolist() == [1.0, 1.0]
    assert dict(os.environ) == before
