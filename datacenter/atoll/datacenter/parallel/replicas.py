"""Check that replicas are equal: compare a checksum of each parameter's bits over ranks.

Replicas diverge because of a hook that gives ranks different bits, memory errors, or code that draws random numbers.
The check costs one pass over the parameters and an all-gather of 8 bytes for each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from atoll.datacenter.errors import TrainingError

if TYPE_CHECKING:
    from torch import nn

_CHUNK = 1 << 20
"""Elements summed at a time: at most 24 MiB of temporary memory."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by number of bytes."""


@torch.no_grad()
def checksum(values: Tensor) -> Tensor:
    """Return the sum of each element's bits times an odd number that depends on its position, modulo 2^64.

    Changing one element always changes the sum; swapping two does so unless they are equal.

    Returns:
        int64 scalar on the same device.
    """
    bits = values.detach().reshape(-1).view(_BITS[values.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for start in range(0, bits.numel(), _CHUNK):
        chunk = bits[start : start + _CHUNK]
        places = torch.arange(start, start + chunk.numel(), device=values.device).mul_(2).add_(1)
        total += (chunk.to(torch.int64) * places).sum()
    return total


def check_replicas(named: Sequence[tuple[str, Tensor]], group: dist.ProcessGroup, step: int) -> None:
    """Compare what this rank holds with what the other ranks hold. Collective.

    Args:
        named: parameters and buffers, the same names on each rank; of DTensors the local parts are compared.
        group: process group of the ranks that hold copies.
        step: the last completed step, for the message.

    Raises:
        TrainingError: on every rank, naming the first parameter that differs and the ranks that differ from the
            majority.
    """
    if not named:
        return
    sums = torch.stack([checksum(_local(value)) for _, value in named])
    gathered = [torch.empty_like(sums) for _ in range(group.size())]
    dist.all_gather(gathered, sums, group=group)
    if problem := difference([name for name, _ in named], [one.tolist() for one in gathered]):
        raise TrainingError(f"step {step}: {problem}; restart from an earlier checkpoint, and check the memory")


def is_whole_along(value: Tensor, axes: Collection[str]) -> bool:
    """Return whether the ranks along these mesh axes hold copies of a parameter, not shards of it."""
    if not isinstance(value, DTensor):
        return True
    names = value.device_mesh.mesh_dim_names or ()
    return not any(name in axes and placed.is_shard() for name, placed in zip(names, value.placements, strict=True))


def named_values(parts: Iterable[nn.Module]) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of a model, or of pipeline stages, with their names."""
    return [pair for part in parts for pair in (*part.named_parameters(), *part.named_buffers())]


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def difference(names: Sequence[str], sums: Sequence[Sequence[int]]) -> str | None:
    """Describe the first difference between checksums by rank and name; None if they are equal."""
    for name, by_rank in zip(names, zip(*sums, strict=True), strict=True):
        wanted = _usual(by_rank)
        ranks = [rank for rank, found in enumerate(by_rank) if found != wanted]
        if ranks:
            of = "s" if len(ranks) > 1 else ""
            return f"replicas differ first in {name}: rank{of} {', '.join(map(str, ranks))} of {len(by_rank)}"
    return None


def _usual(values: Iterable[int]) -> int:
    """Return the most common value; of equally common ones, the first."""
    found = list(values)
    return max(found, key=found.count)
