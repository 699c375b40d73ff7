"""Ring attention (Liu et al. 2023): keys and values go round the ranks; each rank adds their effect on its queries.

Partial results are merged by their log-sum-exp, as in FlashAttention (Dao et al. 2022, section 3.1). The backward pass
goes round again and recomputes scores, so that only inputs, outputs and one float32 per query and head are kept.

In zig-zag order (rank r of n has pieces r and 2n - 1 - r of 2n) causality leaves each rank half of every block except
its own: the first piece of keys from earlier ranks, and the queries of the second piece for keys from later ranks.
    Plain
products, no fused kernel: ``batch * heads * (sequence / cp)^2 / 2`` scores in float32 are held temporarily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single

if TYPE_CHECKING:
    import torch.distributed as dist


class RingAttention(nn.Module):
    """Causal softmax attention over sequences in zig-zag order.

    Each rank sends ``2 * (cp - 1)`` times ``batch * sequence / cp * kv_heads * head_dim`` elements in the forward pass
    and about twice as many in the backward pass, while it computes.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; all tensors are ``[batch, sequence / cp, heads, head_dim]``, keys and values may have fewer heads."""
        batch, sequence, heads, width = query.shape
        grouped = query.view(batch, sequence, key.shape[2], -1, width).permute(0, 2, 3, 1, 4)
        pair = torch.stack((key.transpose(1, 2), value.transpose(1, 2)))
        inputs = grouped.contiguous(), pair.contiguous(), self.group
        mixed: Tensor = _Ring.apply(*inputs)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return mixed.permute(0, 3, 1, 2, 4).reshape(batch, sequence, heads, width)


class _Ring(torch.autograd.Function):
    """Queries ``[batch, kv_heads, group, sequence, dim]``; keys and values ``[2, batch, kv_heads, sequence, dim]``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, pair: Tensor, group: dist.ProcessGroup) -> Tensor:
        ranks, rank = group.size(), group.rank()
        mixed = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        logs = torch.full(query.shape[:-1], -torch.inf, dtype=torch.float32, device=query.device)
        moving = pair
        for step in range(ranks):
            coming = _next(moving, group) if step < ranks - 1 else moving
            queries, keys = _needed(step, rank, query.shape[3])
            key, value = moving[..., keys, :].float().unsqueeze(3)
            scores = _scores(query[..., queries, :].float(), key, causal=step == 0)
            block_logs = scores.logsumexp(-1)
            block = (scores - block_logs[..., None]).exp() @ value
            merged = torch.logaddexp(logs[..., queries], block_logs)
            mixed[..., queries, :] = (
                mixed[..., queries, :] * (logs[..., queries] - merged).exp()[..., None]
                + block * (block_logs - merged).exp()[..., None]
            )
            logs[..., queries] = merged
            moving = coming
        result = mixed.to(query.dtype)
        ctx.save_for_backward(query, pair, result, logs)
        ctx.group = group
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """FlashAttention's backward pass (Dao et al. 2022, algorithm 4): gradients of keys and values go round too."""
        query, pair, result, logs = ctx.saved_tensors
        group: dist.ProcessGroup = ctx.group
        ranks, rank = group.size(), group.rank()
        gradient = gradients[0].float()
        scale = query.shape[-1] ** -0.5
        inner = (gradient * result.float()).sum(-1)
        of_query = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        of_moving = torch.zeros(pair.shape, dtype=torch.float32, device=query.device)
        moving = pair
        for step in range(ranks):
            coming = _next(moving, group) if step < ranks - 1 else moving
            queries, keys = _needed(step, rank, query.shape[3])
            key, value = moving[..., keys, :].float().unsqueeze(3)
            asked, wanted = query[..., queries, :].float(), gradient[..., queries, :]
            shares = (_scores(asked, key, causal=step == 0) - logs[..., queries, None]).exp()
            of_scores = shares * (wanted @ value.transpose(-1, -2) - inner[..., queries, None]) * scale
            of_query[..., queries, :] += of_scores @ key
            of_moving[0][..., keys, :] += (of_scores.transpose(-1, -2) @ asked).sum(2)
            of_moving[1][..., keys, :] += (shares.transpose(-1, -2) @ wanted).sum(2)
            moving, of_moving = coming, _next(of_moving, group)
        return of_query.to(query.dtype), of_moving.to(pair.dtype), None


def _needed(step: int, rank: int, length: int) -> tuple[slice, slice]:
    """Return the queries of this rank, and the keys from the rank ``step`` before, that causality lets meet."""
    half, every = length // 2, slice(None)
    if step == 0:
        return every, every
    return (every, slice(half)) if step <= rank else (slice(half, None), every)


def _scores(query: Tensor, key: Tensor, *, causal: bool) -> Tensor:
    scores: Tensor = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if not causal:
        return scores
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, -torch.inf)


def _next(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send to the next rank, and return what the previous rank sends, which may still be in flight."""
    ranks, rank = group.size(), group.rank()
    flat = tensor.contiguous().flatten()
    sent, received = [0] * ranks, [0] * ranks
    sent[(rank + 1) % ranks] = received[(rank - 1) % ranks] = flat.numel()
    arrived: Tensor = all_to_all_single(flat, received, sent, group)
    return arrived.view(tensor.shape)
