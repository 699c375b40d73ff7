"""Context parallelism: each sequence is divided among the ranks of ``cp``; only attention needs all of it.

=========  ==========================================================  ===========================================
method     attention                                                   sequence is cut into
=========  ==========================================================  ===========================================
ulysses    all-to-all: each rank gets whole sequences of some heads,   one piece for each rank
           then its piece of all heads (Jacobs et al. 2023)
ring       keys and values go round, see ``parallel.ring``             two pieces for each rank, the r-th and the
           (Liu et al. 2023)                                           r-th last: equal work for all (zig-zag)
=========  ==========================================================  ===========================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.moe import routed_of
from atoll.datacenter.parallel.ring import RingAttention

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.parallel import ContextParallelSection
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.models.documents import DocumentMask
    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.parallel.passes import MicroBatch


_POSITIONS = "positions"
"""Attribute of a model: a function that returns the positions of its part of each sequence; see ``models.llama``."""


@dataclass(frozen=True)
class SequenceShare:
    """This rank's part of every sequence.

    Attributes:
        group: process group along ``cp``.
        pieces: 1, or 2 in zig-zag order.
    """

    group: dist.ProcessGroup
    pieces: int

    @classmethod
    def of(cls, job: SiloJob, meshes: Meshes) -> SequenceShare:
        """Return the share for the job's method."""
        return cls(meshes.data["cp"].get_group(), 2 if job.context_parallel.method == "ring" else 1)

    @property
    def ranks(self) -> int:
        """Number of ranks among which a sequence is divided."""
        return self.group.size()

    def numbers(self, rank: int) -> list[int]:
        """Return the numbers of a rank's pieces among all ``pieces * ranks``, in order."""
        return [rank] if self.pieces == 1 else [rank, 2 * self.group.size() - 1 - rank]

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Return the positions of this rank's tokens in the whole sequence, int64 ``[length]``.

        Args:
            length: length of this rank's part.
            device: device of the result.
        """
        piece = length // self.pieces
        starts = torch.tensor(self.numbers(self.group.rank()), device=device) * piece
        return (starts[:, None] + torch.arange(piece, device=device)).flatten()

    def cut(self, whole: Tensor) -> Tensor:
        """Return this rank's part of ``[batch, sequence]``."""
        positions = self.positions(whole.shape[1] // self.group.size(), whole.device)
        return whole.index_select(1, positions)

    def __call__(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """See ``models.moe.SequenceCounts``; collective along ``cp``."""
        ranks = self.group.size()
        parts = [torch.empty_like(counts) for _ in range(ranks)]
        dist.all_gather(parts, counts.contiguous(), group=self.group)
        numbers = torch.tensor([self.numbers(rank) for rank in range(ranks)], device=counts.device)
        ordered = torch.cat(parts).index_select(0, numbers.flatten().argsort())
        before = ordered.cumsum(0) - ordered
        return before[numbers[self.group.rank()]], ordered.sum(0)


class Ulysses(nn.Module):
    """Attention over whole sequences with some of the heads on each rank (Jacobs et al. 2023, section 3.1).

    Each rank sends ``batch * sequence / cp * (2 * heads + 2 * kv_heads) * head_dim * (cp - 1) / cp`` elements in the
    forward pass, and the same number in the backward pass.
    """

    def __init__(self, core: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.core = core
        self.group = group
        self.ranks = group.size()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: DocumentMask | None = None) -> Tensor:
        """Attend; all tensors are ``[batch, sequence / cp, heads, head_dim]``, the mask is that of whole sequences."""
        ranks = self.ranks
        batch, sequence, _, width = query.shape
        parts = [part.reshape(batch, sequence, ranks, -1, width) for part in (query, key, value)]
        sizes = [part.shape[3] for part in parts]
        sent = torch.cat(parts, dim=3).permute(2, 0, 1, 3, 4)
        gathered = self._exchange(sent).permute(1, 0, 2, 3, 4).flatten(1, 2)
        within = () if mask is None else (mask,)
        mixed: Tensor = self.core(*torch.split(gathered, sizes, dim=2), *within)
        back = mixed.reshape(batch, ranks, sequence, -1, width).permute(1, 0, 2, 3, 4)
        return self._exchange(back).permute(1, 2, 0, 3, 4).flatten(2, 3)

    def _exchange(self, blocks: Tensor) -> Tensor:
        """Send the i-th block to the i-th rank."""
        received: Tensor = all_to_all_single_autograd(blocks.contiguous().flatten(), None, None, self.group)
        return received.view(blocks.shape)


def cut_sequences(module: nn.Module, spec: ModelSpec, job: SiloJob, meshes: Meshes) -> None:
    """Make attention, rotary positions and experts work on a part of each sequence, in place.

    Args:
        module: a model or a stage of it.
        spec: names the attention module.
        job: selects the method.
        meshes: device meshes of the world.

    Raises:
        LayoutError: if the spec names no attention module.
    """
    if meshes.dims.cp == 1:
        return
    if spec.attention is None:
        raise LayoutError(f"mesh.cp = {meshes.dims.cp}, but the model's spec names no attention: set cp = 1")
    share = SequenceShare.of(job, meshes)
    for block in spec.blocks_of(module).values():
        owner, _, name = spec.attention.rpartition(".")
        core = block.get_submodule(spec.attention)
        setattr(block.get_submodule(owner), name, _attention(job.context_parallel, core, share.group))
    for _, routed in routed_of(module):
        routed.sequence = share
    setattr(module, _POSITIONS, share.positions)


def _attention(section: ContextParallelSection, core: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    if section.method == "ring":
        return RingAttention(group, fused=section.kernels == "fused")
    return Ulysses(core, group)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a micro-batch.

    Attributes:
        tokens: int64 ``[batch, sequence / cp]``.
        labels: int64 ``[batch, sequence / cp]``.
        documents: of the whole sequences, ``[batch, sequence]``: attention is over these (Ulysses).
        positions: of the part, int64 ``[batch, sequence / cp]``.
    """

    tokens: Tensor
    labels: Tensor
    documents: Tensor | None = None
    positions: Tensor | None = None


def cut_batches(batches: Sequence[MicroBatch], job: SiloJob, meshes: Meshes) -> Sequence[MicroBatch]:
    """Return this rank's part of each sequence."""
    if meshes.dims.cp == 1:
        return batches
    share = SequenceShare.of(job, meshes)

    def part(batch: MicroBatch) -> Part:
        positions = None if batch.positions is None else share.cut(batch.positions)
        return Part(share.cut(batch.tokens), share.cut(batch.labels), batch.documents, positions)

    return [part(batch) for batch in batches]
