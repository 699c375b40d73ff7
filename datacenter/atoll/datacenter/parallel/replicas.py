"""Whether replicas are equal: a checksum of each parameter's bits, compared over ranks.

Replicas part ways by a hook that gives ranks other bits, by memory errors, or by code that draws random numbers. Costs
one pass over the parameters and an all-gather of 8 bytes for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.errors import TrainingError

if TYPE_CHECKING:
    from torch import nn

_CHUNK = 1 << 20
"""Elements weighed at a time: at most 24 MiB beside the parameters."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of as many bytes."""


@torch.no_grad()
def checksum(values: Tensor) -> Tensor:
    """Sum of each element's bits times an odd number that tells its place, modulo 2^64.

    One changed element always changes it; two that swap places do so unless they are equal.

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


def check_replicas(module: nn.Module, group: dist.ProcessGroup, step: int) -> None:
    """Compare this rank's parameters and buffers with those of the others. Collective.

    Args:
        module: a whole replica.
        group: of the replicas.
        step: that was made last, for the message.

    Raises:
        TrainingError: on every rank, naming the first parameter that differs and the ranks that have it otherwise than
            most.
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    if not named:
        return
    sums = torch.stack([checksum(value) for _, value in named])
    gathered = [torch.empty_like(sums) for _ in range(group.size())]
    dist.all_gather(gathered, sums, group=group)
    if problem := difference([name for name, _ in named], [one.tolist() for one in gathered]):
        raise TrainingError(f"step {step}: {problem}; start again from a checkpoint made before, and check the memory")


def difference(names: Sequence[str], sums: Sequence[Sequence[int]]) -> str | None:
    """What is wrong with checksums by rank and name; None if they are equal."""
    for name, by_rank in zip(names, zip(*sums, strict=True), strict=True):
        wanted = _usual(by_rank)
        ranks = [rank for rank, found in enumerate(by_rank) if found != wanted]
        if ranks:
            of = "s" if len(ranks) > 1 else ""
            return f"replicas differ first in {name}: rank{of} {', '.join(map(str, ranks))} of {len(by_rank)}"
    return None


def _usual(values: Iterable[int]) -> int:
    """The commonest; of equals, the one that comes first."""
    found = list(values)
    return max(found, key=found.count)
