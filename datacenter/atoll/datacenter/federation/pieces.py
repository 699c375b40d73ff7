"""The parts of the global model that this rank holds, and which of them this rank sends."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.ranges import ranges_of_box, slice_ranges
from atoll.datacenter.mesh.shards import local_shard

if TYPE_CHECKING:
    from atoll.wire.chunks import ElementRange
    from atoll.wire.layout import Layout, TensorSpan

SPLIT_ELEMENTS = 1 << 16
"""Smaller parts are not divided among the ranks that all hold them: one rank sends the whole part."""


@dataclass(frozen=True)
class Piece:
    """This rank's part of one tensor.

    Attributes:
        span: the tensor, and its place in the layout.
        local: the part in its own shape, sharing the parameter's memory.
        ranges: ranges of its elements in C order.
        sends: positions [first, last) that this rank sends; other ranks with the same part send the rest.
    """

    span: TensorSpan
    local: Tensor
    ranges: tuple[ElementRange, ...]
    sends: tuple[int, int]

    @property
    def sent_ranges(self) -> tuple[ElementRange, ...]:
        """Return what this rank sends, as ranges."""
        return slice_ranges(self.ranges, *self.sends)


def pieces_of(tensors: Mapping[str, Tensor], layout: Layout, device: torch.device) -> tuple[Piece, ...]:
    """Return this rank's parts of a layout. Collective over all ranks.

    Ranks with the same part find each other (replicas, ranks that share tensor-parallel norms, experts' replicas):
    they exchange digests of what they hold, 8 bytes for each tensor, and share the sending.

    Args:
        tensors: this rank's weights and buffers by name, plain or ``DTensor``.
        layout: layout of the global model; each of its tensors is held by some rank.
        device: device for communication.

    Raises:
        LayoutError: if the ranks together do not hold every element of the layout.
    """
    parts = [(span, *_part(tensors[span.spec.name], span)) for span in layout.spans if span.spec.name in tensors]
    parts = [part for part in parts if part[1].numel()]
    holders = _holders([_digest(span, ranges) for span, _, ranges in parts], device)
    pieces = tuple(
        Piece(span, local, ranges, _share(local.numel(), place, count))
        for (span, local, ranges), (place, count) in zip(parts, holders, strict=True)
    )
    _check_whole(pieces, layout, device)
    return pieces


def _part(tensor: Tensor, span: TensorSpan) -> tuple[Tensor, tuple[ElementRange, ...]]:
    local, offsets = local_shard(tensor)
    return local.detach(), ranges_of_box(span.start, span.spec.shape, offsets, tuple(local.shape))


def _digest(span: TensorSpan, ranges: Sequence[ElementRange]) -> int:
    """Return a digest of what is held; equal digests mean equal parts."""
    text = f"{span.spec.name} {[(one.offset, one.block, one.stride, one.count) for one in ranges]}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _holders(digests: Sequence[int], device: torch.device) -> list[tuple[int, int]]:
    """For each of this rank's digests, count the earlier ranks that have it too, and all ranks that have it."""
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    counts[dist.get_rank()] = len(digests)
    dist.all_reduce(counts)
    mine = torch.zeros(int(counts.max()), dtype=torch.int64, device=device)
    mine[: len(digests)] = torch.tensor(digests, dtype=torch.int64)
    everyone = [torch.empty_like(mine) for _ in counts]
    dist.all_gather(everyone, mine)
    before: Counter[int] = Counter()
    total: Counter[int] = Counter()
    for rank, (theirs, count) in enumerate(zip(everyone, counts.tolist(), strict=True)):
        found = theirs[:count].tolist()
        total.update(found)
        if rank < dist.get_rank():
            before.update(found)
    return [(before[digest], total[digest]) for digest in digests]


def _share(elements: int, place: int, count: int) -> tuple[int, int]:
    """Return the positions that holder number ``place`` of ``count`` sends."""
    if elements < SPLIT_ELEMENTS:
        return (0, elements) if place == 0 else (0, 0)
    return elements * place // count, elements * (place + 1) // count


def _check_whole(pieces: Sequence[Piece], layout: Layout, device: torch.device) -> None:
    sent = torch.tensor(sum(piece.sends[1] - piece.sends[0] for piece in pieces), dtype=torch.int64, device=device)
    dist.all_reduce(sent)
    if int(sent) != layout.size:
        raise LayoutError(f"the ranks together hold {int(sent)} elements of a model of {layout.size}")
