"""The device mesh: degrees of its axes, process groups, and the shard that a rank holds."""

from atoll.datacenter.mesh.dims import ParallelDims
from atoll.datacenter.mesh.meshes import Meshes
from atoll.datacenter.mesh.randomness import seed_ranks
from atoll.datacenter.mesh.world import World, host_group, join_world, pair_group

__all__ = ["Meshes", "ParallelDims", "World", "host_group", "join_world", "pair_group", "seed_ranks"]
