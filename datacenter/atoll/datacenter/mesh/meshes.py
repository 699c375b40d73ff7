"""The device meshes of a job: views of one world, so that DTensors of different views can be combined."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from atoll.datacenter.mesh.dims import ParallelDims
from atoll.datacenter.mesh.groups import Views


@dataclass(frozen=True)
class Meshes:
    """Device meshes, all views of one world.

    Attributes:
        dims: degrees of the axes.
        dense: axes ``pp, dp_replicate, fsdp, tp``: for parameters that every token passes through.
        sparse: axes ``pp, dp_replicate, efsdp, ep, tp``: for experts; None if ``ep`` is 1.
        data: axes ``pp, batch, cp, tp``: for the input of each rank.
        loss: one axis: the ranks over which token losses are summed.
    """

    dims: ParallelDims
    dense: DeviceMesh
    sparse: DeviceMesh | None
    data: DeviceMesh
    loss: DeviceMesh

    @classmethod
    def build(cls, dims: ParallelDims, device_type: str) -> Meshes:
        """Arrange all ranks; collective. Opens a process group for each axis, see ``Views``.

        Raises:
            ValueError: if the process group has a different number of ranks.
        """
        view = Views(device_type).view
        dense = view(pp=dims.pp, dp_replicate=dims.dp_replicate, fsdp=dims.fsdp, tp=dims.tp)
        sparse = None
        if dims.ep > 1:
            sparse = view(pp=dims.pp, dp_replicate=dims.dp_replicate, efsdp=dims.efsdp, ep=dims.ep, tp=dims.tp)
        return cls(
            dims=dims,
            dense=dense,
            sparse=sparse,
            data=view(pp=dims.pp, batch=dims.batch, cp=dims.cp, tp=dims.tp),
            loss=view(pp=dims.pp, loss=dims.loss, tp=dims.tp)["loss"],
        )

    @classmethod
    def alone(cls, device_type: str) -> Meshes:
        """Return meshes of one rank, for each rank of the world; collective."""
        views, ranks = Views(device_type), dist.get_world_size()

        def view(*axes: str) -> DeviceMesh:
            return views.view(worker=ranks, **dict.fromkeys(axes, 1))[axes]

        dense, data = view("pp", "dp_replicate", "fsdp", "tp"), view("pp", "batch", "cp", "tp")
        return cls(dims=ParallelDims(), dense=dense, sparse=None, data=data, loss=view("loss"))
