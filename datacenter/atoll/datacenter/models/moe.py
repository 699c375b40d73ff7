"""Mixture of experts (Shazeer et al. 2017): each token passes through a few experts that a router chooses.

Every sequence is handled separately, so that neither micro-batches nor layouts change a result:

* An expert's capacity holds for one sequence, the *group* of Lepikhin et al. 2020 (section 2.2). First choices of all
  tokens take capacity in order of position, then second choices, and so on. A token beyond the capacity skips that
  expert; its weight is not distributed to the others.
* The auxiliary loss of Fedus et al. 2021 (equations 4 to 6) is computed for each sequence (DeepSeek-AI 2024,
  *DeepSeek-V3*, equations 17 to 20) and weighted with the sequence's length. Over a whole batch it would be a product
  of two means over that batch, which depends on the micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

from atoll.datacenter.models.extra import ExtraLoss
from atoll.datacenter.models.slots import fill_slots, pick_slots, slots_of

if TYPE_CHECKING:
    from atoll.datacenter.job.model import MoeSection

_ALIGNMENT_BYTES = 16
"""``grouped_mm`` needs rows that begin at multiples of this."""


class Mixing(Protocol):
    """Runs experts on rows, on the ranks that hold the experts."""

    def __call__(self, rows: Tensor, counts: Tensor, experts: Experts) -> Tensor:
        """Return the results in the order of the rows.

        Args:
            rows: ``[rows, dim]``, sorted by expert.
            counts: int64 ``[experts]``: how many rows each expert of the model gets.
            experts: the experts of this rank.
        """
        ...


class Exchange(Protocol):
    """Runs experts on a fixed number of slots each, on the ranks that hold the experts."""

    def __call__(self, filled: Tensor, experts: Experts) -> Tensor:
        """Map ``[experts of the model, slots, dim]`` to the same shape.

        Args:
            filled: rows in the slots of each expert; free slots are zeros, which an expert maps to zeros.
            experts: the experts of this rank.
        """
        ...


class SequenceCounts(Protocol):
    """Sums counts along sequences that may be divided among ranks.

    Attributes:
        pieces: equal pieces of a sequence that this rank has.
    """

    @property
    def pieces(self) -> int:
        """Equal pieces of a sequence that this rank has."""
        ...

    @property
    def ranks(self) -> int:
        """Number of ranks among which a sequence is divided."""
        ...

    def __call__(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the counts before each piece, and the sum over the whole sequence.

        Args:
            counts: int64 ``[pieces, ...]``: counts of this rank's pieces.

        Returns:
            int64 ``[pieces, ...]`` and ``[...]``.
        """
        ...


class WholeSequence:
    """Sequences that are not divided."""

    pieces = 1
    ranks = 1

    def __call__(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """See ``SequenceCounts``."""
        return torch.zeros_like(counts), counts[0]


class Experts(nn.Module):
    """SwiGLU experts (Shazeer 2020) with stacked matrices: float ``[experts, outputs, inputs]``."""

    def __init__(self, experts: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(experts, hidden, dim))
        self.w2 = nn.Parameter(torch.empty(experts, dim, hidden))
        self.w3 = nn.Parameter(torch.empty(experts, hidden, dim))

    def forward(self, rows: Tensor, counts: Tensor | None) -> Tensor:
        """Apply each expert's feed-forward part to its rows.

        Args:
            rows: ``[rows, dim]``, sorted by expert; or without counts ``[experts, slots, dim]``.
            counts: int64 ``[experts]``; their sum is ``rows``.
        """
        w1, w2, w3 = (_local(weight).to(rows.dtype) for weight in (self.w1, self.w2, self.w3))
        if counts is None:
            gated = functional.silu(rows @ w1.transpose(1, 2)) * (rows @ w3.transpose(1, 2))
            return gated @ w2.transpose(1, 2)
        mixed = functional.silu(grouped_product(rows, w1, counts)) * grouped_product(rows, w3, counts)
        return grouped_product(mixed, w2, counts)


def grouped_product(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Multiply each group of rows by the transpose of its own matrix: one ``grouped_mm`` where sizes allow it.

    Args:
        rows: ``[rows, inputs]``, group after group.
        weights: ``[groups, outputs, inputs]``.
        counts: int64 ``[groups]``; their sum is ``rows``.
    """
    sizes = (size * rows.element_size() % _ALIGNMENT_BYTES for size in weights.shape[1:])
    if not rows.shape[0] or any(sizes):
        return product_by_group(rows, weights, counts)
    ends = counts.cumsum(0).to(torch.int32)
    product = functional.grouped_mm(rows, weights.transpose(1, 2), offs=ends)
    if product.requires_grad:  # grouped_mm's backward does not take an expanded gradient, such as that of a plain sum
        product.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return product


def product_by_group(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Same as ``grouped_product``, with one product after another."""
    groups = rows.split(counts.tolist())  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return torch.cat([group @ weight.t() for group, weight in zip(groups, weights, strict=True)])


class RoutedExperts(nn.Module):
    """Router and experts. Your own models may use this class: ranks find it by its type and cut it.

    With tensor parallelism, which cuts each expert's hidden dim, the output is one summand of the result.

    Attributes:
        router: scores in float32, independent of the compute format.
        experts: the experts of this rank.
        bias: float32 ``[experts]``, added to the scores for the choice only (Wang et al. 2024); None unless
            ``balance = "bias"``. The same on every rank; kept in checkpoints.
        load: int64 ``[experts]``: choices of this rank's tokens in the current step, including dropped ones.
        mixing: how rows reach their experts; expert parallelism replaces it.
        exchange: how slots reach their experts, with ``padded``; expert parallelism replaces it.
        sequence: how counts are summed along a sequence; context parallelism replaces it.
        copies: number of ranks that route the same tokens (tensor parallelism).
    """

    bias: Tensor | None

    def __init__(self, dim: int, section: MoeSection) -> None:
        super().__init__()
        self.section = section
        self.router = nn.Linear(dim, section.experts, bias=False)
        self.experts = Experts(section.experts, dim, section.expert_dim)
        self.register_buffer("bias", torch.zeros(section.experts) if section.balance == "bias" else None)
        self.extra_loss = ExtraLoss()
        self.load: Tensor | None = None
        self.mixing: Mixing = _here
        self.exchange: Exchange = _slots_here
        self.sequence: SequenceCounts = WholeSequence()
        self.copies = 1

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``[batch, sequence, dim]`` to the same shape."""
        scores = self._scores(hidden)
        chosen = (scores if self.bias is None else scores + self.bias).topk(self.section.top_k).indices
        weights = scores.gather(-1, chosen)
        if self.section.top_k > 1:  # with one choice the score must stay, otherwise the router would get no gradient
            weights = weights / weights.sum(-1, keepdim=True)
        counts = self._count(chosen)
        before, total = self.sequence(counts)
        self._remember(counts)
        places = None if self.section.capacity_factor is None else self._places(chosen, before, total)
        if places is not None and self.section.padded:
            mixed = self._mix_padded(hidden, chosen, weights, places)
        else:
            mixed = self._mix(hidden, chosen, weights, None if places is None else places < self._capacity(chosen))
        if self.section.balance == "loss" and torch.is_grad_enabled():
            mixed = self.extra_loss(mixed, self._balance_loss(scores, total.sum(1)))
        return mixed

    def _scores(self, hidden: Tensor) -> Tensor:
        """Softmax over experts, ``[batch, sequence, experts]``."""
        with torch.autocast(hidden.device.type, enabled=False):
            logits = functional.linear(hidden.float(), _local(self.router.weight, summed=True).float())
            return logits.softmax(-1)

    def _count(self, chosen: Tensor) -> Tensor:
        """Choices, int64 ``[pieces, batch, top_k, experts]``."""
        pieces = self.sequence.pieces
        batch, _, choices = chosen.shape
        found = chosen.new_zeros(pieces, batch, choices, self.section.experts)
        index = chosen.view(batch, pieces, -1, choices).permute(1, 0, 3, 2)
        return found.scatter_add_(-1, index, torch.ones_like(index))

    def _remember(self, counts: Tensor) -> None:
        """Add to the load, except when the backward pass recomputes a forward pass."""
        again = torch._C._current_graph_task_id() != -1  # noqa: SLF001  # torch.utils.checkpoint asks the same way
        if torch.is_grad_enabled() and not again:
            load = counts.sum((0, 1, 2))
            self.load = load if self.load is None else self.load + load

    def _places(self, chosen: Tensor, before: Tensor, total: Tensor) -> Tensor:
        """Return each choice's place among the choices of its expert in its sequence, int64 like ``chosen``.

        Args:
            chosen: int64 ``[batch, sequence, top_k]``.
            before: int64 ``[pieces, batch, top_k, experts]``: choices of earlier pieces, by number of the choice.
            total: int64 ``[batch, top_k, experts]``: choices of the whole sequence.
        """
        pieces, experts = self.sequence.pieces, self.section.experts
        batch, sequence, choices = chosen.shape
        every = torch.arange(experts, device=chosen.device)
        hot = (chosen.view(batch, pieces, -1, choices)[..., None] == every).to(torch.int64)
        better = total.cumsum(1) - total  # first choices of the whole sequence take precedence over second ones
        ahead = hot.cumsum(2) - hot + (before + better).transpose(0, 1)[:, :, None]
        return (ahead * hot).sum(-1).view(batch, sequence, choices)

    def _capacity(self, chosen: Tensor) -> int:
        """Return the capacity of an expert for one whole sequence."""
        return capacity(self.section, chosen.shape[1] * self.sequence.ranks)

    def _mix_padded(self, hidden: Tensor, chosen: Tensor, weights: Tensor, places: Tensor) -> Tensor:
        """Like ``_mix``, with the same number of slots for each expert and sequence: the host knows every size."""
        batch, slots_each = len(chosen), self._capacity(chosen)
        slots = slots_of(chosen, places, slots_each, self.section.experts)
        filled = fill_slots(hidden, slots, self.section.experts * batch * slots_each)
        mixed = self.exchange(filled.view(self.section.experts, batch * slots_each, -1), self.experts)
        return (pick_slots(mixed.flatten(0, 1), slots) * weights[..., None]).sum(-2).to(hidden.dtype)

    def _mix(self, hidden: Tensor, chosen: Tensor, weights: Tensor, kept: Tensor | None) -> Tensor:
        """Send each token to its experts and add up the weighted results."""
        experts, choices, dim = self.section.experts, self.section.top_k, hidden.shape[-1]
        wanted = (chosen if kept is None else chosen.masked_fill(~kept, experts)).flatten()
        counts = wanted.new_zeros(experts + 1).scatter_add_(0, wanted, torch.ones_like(wanted))[:experts]
        order = wanted.argsort(stable=True)
        if kept is not None:
            order = order[: int(kept.sum())]
        rows = self.mixing(hidden.reshape(-1, dim).index_select(0, order // choices), counts, self.experts)
        mixed = rows.new_zeros(wanted.shape[0], dim).index_copy(0, order, rows).view(*chosen.shape, dim)
        return (mixed * weights[..., None]).sum(-2).to(hidden.dtype)

    def _balance_loss(self, scores: Tensor, load: Tensor) -> Tensor:
        """Return this rank's part of the auxiliary loss, summed over its sequences.

        Args:
            scores: ``[batch, sequence, experts]``.
            load: int64 ``[batch, experts]``: choices of the whole sequences; carries no gradient.
        """
        share = load / load.sum(1, keepdim=True)
        loss = (share * scores.sum(1)).sum() * self.section.experts
        return loss * (self.section.loss_weight / self.copies)


class MoeFeedForward(nn.Module):
    """Routed experts plus the shared ones (Dai et al. 2024, section 3.2), which are computed as one wide expert."""

    def __init__(self, dim: int, section: MoeSection, shared: nn.Module | None) -> None:
        super().__init__()
        self.routed = RoutedExperts(dim, section)
        self.shared = shared

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``[batch, sequence, dim]`` to the same shape."""
        mixed: Tensor = self.routed(hidden)
        return mixed if self.shared is None else mixed + self.shared(hidden)


def routed_of(module: nn.Module) -> Iterator[tuple[str, RoutedExperts]]:
    """Yield every ``RoutedExperts`` of a module with its name."""
    return ((name, part) for name, part in module.named_modules() if isinstance(part, RoutedExperts))


def capacity(section: MoeSection, sequence: int) -> int:
    """Return an expert's capacity for one sequence: its even share times the factor, rounded up."""
    if section.capacity_factor is None:
        return sequence
    return min(sequence, ceil(section.capacity_factor * section.top_k * sequence / section.experts))


def _slots_here(filled: Tensor, experts: Experts) -> Tensor:
    mixed: Tensor = experts(filled, None)
    return mixed


def _here(rows: Tensor, counts: Tensor, experts: Experts) -> Tensor:
    mixed: Tensor = experts(rows, counts)
    return mixed


def _local(weight: Tensor, *, summed: bool = False) -> Tensor:
    """Return this rank's shard; with ``summed`` the gradients of the ranks are summands."""
    if not isinstance(weight, DTensor):
        return weight
    return weight.to_local(grad_placements=[Partial()] * weight.device_mesh.ndim) if summed else weight.to_local()
