"""Process groups of mesh axes: one for each set of lines, shared by all views that have these lines."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName

OWN = frozenset({"cp", "ep"})
"""Axes that exchange within layers. NCCL runs the collectives of one group in the order in which they were queued, so
these axes must not share a group with the gathers that FSDP queues ahead for the next layer."""

_OPEN_AS_PYTORCH = DeviceMesh._init_one_process_group  # noqa: SLF001  # no public name
_IN_RANK_ORDER: dict[str, Any] = (
    {"preserve_rank_order": False} if "preserve_rank_order" in signature(_OPEN_AS_PYTORCH).parameters else {}
)
"""An argument that torch 2.15 requires and 2.13 does not have. No mesh here permutes the ranks."""


class Views:
    """Arranges all ranks of the world as meshes; equal axes of several meshes share a process group.

    PyTorch opens a group for each axis of each mesh, even for axes of one rank. All meshes have one root, so that
    DTensors of different meshes can be combined.

    Args:
        device_type: ``cpu`` or ``cuda``.
    """

    def __init__(self, device_type: str) -> None:
        ranks = torch.arange(dist.get_world_size())
        self._root = DeviceMesh(device_type, ranks, mesh_dim_names=("world",), _init_backend=False)
        self._opened: dict[tuple[bool, tuple[tuple[int, ...], ...]], GroupName] = {}

    def view(self, **axes: int) -> DeviceMesh:
        """Return a mesh with these degrees, outermost axis first; collective.

        Raises:
            ValueError: if the product of the degrees is not the number of ranks.
        """
        mesh = self._root._unflatten(0, tuple(axes.values()), tuple(axes))  # noqa: SLF001  # no public name for it yet
        mesh._dim_group_names = [self._group(mesh, *axis) for axis in enumerate(axes)]  # noqa: SLF001  # as above
        return mesh

    def _group(self, mesh: DeviceMesh, number: int, axis: str) -> GroupName:
        """Return the group of this rank's line along an axis; open it if no earlier mesh has the same lines."""
        lines = tuple(map(tuple, mesh.mesh.movedim(number, -1).flatten(0, -2).tolist()))
        key = (axis in OWN and mesh.size(number) > 1, lines)
        if key not in self._opened:
            name = self._opened[key] = _open(mesh, number, axis)
            self._root._pg_registry[name] = _resolve_process_group(name)  # noqa: SLF001  # compiled code looks here
        return self._opened[key]


def _open(mesh: DeviceMesh, number: int, axis: str) -> GroupName:
    """Open a group for each line along an axis, as PyTorch does: the world's serves an axis of all ranks."""
    if axis in OWN and 1 < mesh.size(number) == dist.get_world_size():
        opened = dist.new_group(group_desc=f"mesh_{axis}")
        name = opened.group_name if isinstance(opened, dist.ProcessGroup) else None
    else:
        layout, ranks = mesh._layout[number], mesh._rank_map  # noqa: SLF001  # no public names
        name = _OPEN_AS_PYTORCH(layout, ranks, axis, (None, None), **_IN_RANK_ORDER)
    if name is None:
        raise RuntimeError(f"rank {dist.get_rank()} is on no line of the axis {axis} of {mesh}")
    return name
