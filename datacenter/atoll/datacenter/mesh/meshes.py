"""The device meshes of a job: views of one world, so that DTensors of different views can be combined."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from atoll.datacenter.mesh.dims import ParallelDims


@dataclass(frozen=True)
class Meshes:
    """Device meshes, all views of one world.

    Attributes:
        dims: degrees of the axes.
        dense: axes ``pp, dp_replicate, fsdp, tp``: for parameters that every token passes through.
        sparse: axes ``pp, dp_replicate, efsdp, ep, tp``: for experts; None if ``ep`` is 1.
        data: axes ``pp, batch, cp, tp``: for the input of each rank.
        loss: one axis: the ranks over which token losses are summed; that of ``data`` if it has the same ranks.
    """

    dims: ParallelDims
    dense: DeviceMesh
    sparse: DeviceMesh | None
    data: DeviceMesh
    loss: DeviceMesh

    @classmethod
    def build(cls, dims: ParallelDims, device_type: str) -> Meshes:
        """Arrange all ranks; collective. Creates a process group for each axis and each line along it.

        Raises:
            RuntimeError: if the process group has a different number of ranks.
        """
        world = init_device_mesh(device_type, (dims.world_size,), mesh_dim_names=("world",))

        def view(**axes: int) -> DeviceMesh:
            return world._unflatten(0, tuple(axes.values()), tuple(axes))  # noqa: SLF001  # no public name for it yet

        data = view(pp=dims.pp, batch=dims.batch, cp=dims.cp, tp=dims.tp)
        sparse = None
        if dims.ep > 1:
            sparse = view(pp=dims.pp, dp_replicate=dims.dp_replicate, efsdp=dims.efsdp, ep=dims.ep, tp=dims.tp)
        return cls(
            dims=dims,
            dense=view(pp=dims.pp, dp_replicate=dims.dp_replicate, fsdp=dims.fsdp, tp=dims.tp),
            sparse=sparse,
            data=data,
            loss=_loss(data, dims),
        )

    @classmethod
    def alone(cls, device_type: str) -> Meshes:
        """Return meshes of one rank, for each rank of the world; collective."""
        dims, ranks = ParallelDims(), dist.get_world_size()
        world = init_device_mesh(device_type, (ranks,), mesh_dim_names=("world",))

        def view(*axes: str) -> DeviceMesh:
            shape = (ranks, *(1 for _ in axes))
            return world._unflatten(0, shape, ("worker", *axes))[axes]  # noqa: SLF001  # as above

        data = view("pp", "batch", "cp", "tp")
        dense = view("pp", "dp_replicate", "fsdp", "tp")
        return cls(dims=dims, dense=dense, sparse=None, data=data, loss=_loss(data, dims))


def _loss(data: DeviceMesh, dims: ParallelDims) -> DeviceMesh:
    """Reuse an existing process group if one of the two axes has one rank."""
    if 1 in (dims.batch, dims.cp):
        return data["batch" if dims.cp == 1 else "cp"]
    return data["batch", "cp"]._flatten("loss")  # noqa: SLF001  # no public name for it yet
