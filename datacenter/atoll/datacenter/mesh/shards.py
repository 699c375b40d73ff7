"""The shard of a parameter that this rank holds, and where it begins in the whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def local_shard(parameter: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return this rank's shard of a parameter, sharing its memory, and the index of its first element by dim."""
    if not isinstance(parameter, DTensor):
        return parameter.data, (0,) * parameter.dim()
    _, offsets = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return parameter.to_local(), tuple(offsets)


def unwrapped(parameter: Tensor) -> Tensor:
    """Return the same parameter with a plain shard, sharing its memory; without a gradient.

    A matrix that FSDP gathers in float8 wraps another tensor and has no memory of its own: code that copies it by its
    storage, as checkpoints do, would read unrelated memory.
    """
    shard: Any = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach()
    if not is_traceable_wrapper_subclass(shard):
        return parameter.detach()
    inner: Tensor = getattr(shard, shard.__tensor_flatten__()[0][0])
    if not isinstance(parameter, DTensor):
        return inner
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        inner, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
