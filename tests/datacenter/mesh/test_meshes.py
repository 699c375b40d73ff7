"""The device meshes of one world."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from atoll.datacenter.mesh import Meshes, ParallelDims
from tests.datacenter.ranks import run_ranks


def places() -> dict[str, Any]:
    meshes = Meshes.build(ParallelDims(pp=2, dp_shard=2, cp=1, tp=2, ep=2), "cpu")
    assert meshes.sparse is not None
    views = {"dense": meshes.dense, "sparse": meshes.sparse, "data": meshes.data, "loss": meshes.loss}
    found = {name: mesh.get_coordinate() for name, mesh in views.items()}
    assert dist.get_world_size(meshes.loss.get_group()) == 2
    return {name: tuple(place or ()) for name, place in found.items()}


def test_each_rank_knows_its_place_in_every_view() -> None:
    found = run_ranks(places, 8)
    assert [item["dense"] for item in found] == [(p, 0, s, t) for p in (0, 1) for s in (0, 1) for t in (0, 1)]
    assert [item["sparse"] for item in found] == [(p, 0, 0, e, t) for p in (0, 1) for e in (0, 1) for t in (0, 1)]
    assert [item["data"] for item in found] == [(p, s, 0, t) for p in (0, 1) for s in (0, 1) for t in (0, 1)]
    assert [item["loss"] for item in found] == [(s,) for _ in (0, 1) for s in (0, 1) for _ in (0, 1)]


def groups(dims: dict[str, int]) -> tuple[int, list[int], list[int]]:
    """Number of groups with more than one rank that this rank is in, and the ranks of losses by two ways."""
    meshes = Meshes.build(ParallelDims(**dims), "cpu")
    shared = [group for group in dist.distributed_c10d._world.pg_map if dist.get_world_size(group) > 1]
    summed = meshes.data["batch", "cp"].mesh.flatten().tolist()
    return len(shared), dist.get_process_group_ranks(meshes.loss.get_group()), summed


@pytest.mark.parametrize(
    ("dims", "count"), [({"dp_shard": 2, "tp": 2}, 5), ({"cp": 2, "tp": 2}, 5), ({"dp_shard": 2, "cp": 2}, 3)]
)
def test_losses_are_summed_over_a_group_that_is_there_already(dims: dict[str, int], count: int) -> None:
    """A 2 x 2 job has the world's group and four of two ranks; it has none for losses alone."""
    for number, ranks, summed in run_ranks(groups, 4, dims):
        assert number == count
        assert ranks == summed
