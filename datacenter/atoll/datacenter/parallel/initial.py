"""Initial weights that depend only on seed and name, not on the layout: each rank fills only what it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from atoll.datacenter.mesh.shards import local_shard
from atoll.datacenter.models.spec import Constant, Normal

if TYPE_CHECKING:
    from atoll.datacenter.models.spec import Initial

Draw: TypeAlias = Callable[[int, tuple[int, ...]], Tensor]
"""Maps a block's number and shape to its values."""
_BLOCK_ELEMENTS = 1 << 20
"""Elements drawn from one generator: as many rows of a parameter as fit, at least one."""


@torch.no_grad()
def fill(module: nn.Module, initial: Initial, seed: int, but: Collection[str] = ()) -> None:
    """Fill parameters and buffers in place.

    Memory: one block of float32 (4 MiB, or one row) in addition to the parameters.

    Args:
        module: model on a real device, its parameters plain or ``DTensor``.
        initial: initial distribution of each parameter, by its name in the whole model.
        seed: seed of the job.
        but: names of parameters to leave as they are.
    """
    for name, parameter in chain(module.named_parameters(), module.named_buffers()):
        if name in but:
            continue
        local, offsets = local_shard(parameter)
        rule = initial(name, tuple(parameter.shape))
        if isinstance(rule, Constant):
            local.fill_(rule.value)
        elif local.numel():
            fill_blocks(local, offsets, tuple(parameter.shape), partial(_normal, rule, f"{seed}/{name}"))


@torch.no_grad()
def copy_whole(module: nn.Module, weights: Mapping[str, Tensor]) -> set[str]:
    """Copy what this rank holds out of whole tensors, in place.

    Args:
        module: model on a real device, its parameters and buffers plain or ``DTensor``.
        weights: whole tensors by name, on any device.

    Returns:
        The names of the parameters and buffers that have a tensor.
    """
    found = set()
    for name, parameter in chain(module.named_parameters(), module.named_buffers()):
        if name in weights:
            local, offsets = local_shard(parameter)
            parts = tuple(slice(start, start + size) for start, size in zip(offsets, local.shape, strict=True))
            local.copy_(weights[name][parts])
            found.add(name)
    return found


def fill_blocks(local: Tensor, offsets: tuple[int, ...], shape: tuple[int, ...], draw: Draw) -> None:
    """Draw the blocks of rows that overlap with what this rank holds.

    Args:
        local: what this rank holds; filled.
        offsets: index of its first element, by dim.
        shape: shape of the whole parameter.
        draw: returns a block of this number and shape.
    """
    row_elements = 1
    for size in shape[1:]:
        row_elements *= size
    rows = max(1, _BLOCK_ELEMENTS // row_elements)
    begin, end = offsets[0], offsets[0] + local.shape[0]
    inner = tuple(slice(start, start + size) for start, size in zip(offsets[1:], local.shape[1:], strict=True))
    for block in range(begin // rows, -(-end // rows)):
        first, last = block * rows, min((block + 1) * rows, shape[0])
        drawn = draw(block, (last - first, *shape[1:]))
        lower, upper = max(first, begin), min(last, end)
        local[lower - begin : upper - begin].copy_(drawn[(slice(lower - first, upper - first), *inner)])


def _normal(rule: Normal, key: str, block: int, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape).normal_(0.0, rule.std, generator=_generator(f"{key}/{block}"))


def _generator(key: str) -> torch.Generator:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
