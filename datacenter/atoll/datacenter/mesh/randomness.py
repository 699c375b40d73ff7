"""Seeds of the random numbers that ranks draw in training, for dropout for example."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor._random import manual_seed

if TYPE_CHECKING:
    from atoll.datacenter.mesh.meshes import Meshes


def seed_ranks(seed: int, meshes: Meshes, world: int = 0) -> None:
    """Seed this rank's generators by its place in the mesh.

    Ranks that hold different sequences, parts of a sequence (``cp``) or stages (``pp``) draw different numbers. The
    ranks of one ``tp`` group draw the same: hidden states that each of them holds whole must get the same dropout mask,
    or the copies of a weight drift apart. Where hidden states are cut along ``tp``, PyTorch gives each shard its own
    numbers on a GPU (``OffsetBasedRNGTracker``); on the CPU all shards get the same mask.

    Args:
        seed: the job's seed.
        meshes: device meshes of the world.
        world: number of this world among worlds that must draw different numbers, such as replica groups.
    """
    places = meshes.data["pp", "batch", "cp"]
    coordinate = places.get_coordinate()
    if coordinate is None:
        raise ValueError("this rank is not in the mesh")
    own = world
    for index, size in zip(coordinate, places.shape, strict=True):
        own = own * size + index
    torch.manual_seed(seed + own)
    if meshes.dims.tp > 1 and torch.cuda.is_available():
        # Otherwise the first random operation on a DTensor would copy rank 0's state to all ranks, including those of
        # other stages.
        manual_seed(seed + own, meshes.data["tp"])
