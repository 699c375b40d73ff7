"""The shard of a parameter that this rank holds, and where it begins in the whole."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local_shard(parameter: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return this rank's shard of a parameter, sharing its memory, and the index of its first element by dim."""
    if not isinstance(parameter, DTensor):
        return parameter.data, (0,) * parameter.dim()
    _, offsets = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return parameter.to_local(), tuple(offsets)
