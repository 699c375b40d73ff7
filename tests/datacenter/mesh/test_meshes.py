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


def groups(dims: dict[str, int]) -> tuple[list[str], list[int], list[int]]:
    """The axes that the groups of this rank were opened for, and the ranks over which losses are summed by two ways."""
    meshes = Meshes.build(ParallelDims(**dims), "cpu")
    opened = sorted(group.group_desc.removeprefix("mesh_") for group in dist.distributed_c10d._world.pg_map)
    summed = meshes.data["batch", "cp"].mesh.flatten().tolist()
    return opened, dist.get_process_group_ranks(meshes.loss.get_group()), summed


LAYOUTS: list[tuple[dict[str, int], set[str]]] = [
    ({"dp_shard": 2}, {"pp"}),  # the world's is also that of fsdp
    ({"dp_shard": 2, "tp": 2}, {"pp", "fsdp", "tp"}),
    ({"dp_replicate": 2, "dp_shard": 2}, {"pp", "dp_replicate", "fsdp"}),
    ({"pp": 2, "dp_shard": 2}, {"pp", "dp_replicate", "fsdp"}),
    ({"pp": 2, "dp_shard": 2, "tp": 2}, {"pp", "dp_replicate", "fsdp", "tp"}),
    ({"cp": 2, "tp": 2}, {"pp", "fsdp", "tp", "cp"}),
    ({"dp_shard": 2, "cp": 2}, {"pp", "batch", "cp"}),
    ({"dp_replicate": 2, "dp_shard": 2, "cp": 2}, {"pp", "dp_replicate", "fsdp", "batch", "cp"}),
    ({"dp_shard": 4, "ep": 2}, {"pp", "efsdp", "ep"}),
    ({"dp_shard": 2, "ep": 2}, {"pp", "ep"}),
    ({"cp": 2, "ep": 2}, {"pp", "ep"}),  # they do not exchange at once
]
"""Degrees, and the first axis of each group besides the world's. The first axis of one rank names the group of all
axes of one rank: without ``pp`` and with it, it is ``pp`` and ``dp_replicate``."""


@pytest.mark.parametrize(("dims", "axes"), LAYOUTS, ids=["-".join(dims) for dims, _ in LAYOUTS])
def test_each_set_of_ranks_has_one_group(dims: dict[str, int], axes: set[str]) -> None:
    """A second one is only for axes that exchange within layers: ``cp`` and ``ep`` with the ranks of ``fsdp``."""
    for opened, ranks, summed in run_ranks(groups, ParallelDims(**dims).world_size, dims):
        assert opened == sorted({"default_pg", *axes})
        assert ranks == summed


def alone() -> list[str]:
    Meshes.alone("cpu")
    return sorted(group.group_desc for group in dist.distributed_c10d._world.pg_map)


def test_worlds_of_one_rank_share_a_group() -> None:
    assert run_ranks(alone, 2) == [["default_pg", "mesh_pp"]] * 2
