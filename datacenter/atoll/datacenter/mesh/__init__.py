"""The mesh: how the ranks of a job are arranged, and which job fits which arrangement."""

from atoll.datacenter.mesh.dims import ParallelDims
from atoll.datacenter.mesh.meshes import Meshes
from atoll.datacenter.mesh.world import World, join_world

__all__ = ["Meshes", "ParallelDims", "World", "join_world"]
