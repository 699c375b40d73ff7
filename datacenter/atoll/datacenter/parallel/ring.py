"""Ring attention (Liu et al. 2023): keys and values circulate; each rank adds their effect on its queries.

Blocks are computed by fused kernels and merged by their log-sum-exp, see ``parallel.attention_blocks``. The backward
pass circulates them again, so that only inputs, outputs and one float32 per query and head are kept.

In zig-zag order (rank r of n has pieces r and 2n - 1 - r of 2n) causality leaves each rank half of every block except
its own. Of keys from earlier ranks it needs the first piece; for keys from later ranks it needs only the queries of its
second piece.

The whole ring is one operator of PyTorch: the compiler does not look inside, and selective checkpointing keeps only its
result, not that of each block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed._functional_collectives import all_to_all_single

from atoll.datacenter.parallel.attention_blocks import dense, kernels_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.distributed_c10d import GroupName


class RingAttention(nn.Module):
    """Causal softmax attention over sequences in zig-zag order.

    Each rank sends ``2 * (cp - 1)`` times ``batch * sequence / cp * kv_heads * head_dim`` elements in the forward pass
    and about twice as many in the backward pass, while it computes.

    Args:
        group: the ranks of the ring.
        fused: use fused kernels where there are any.
    """

    def __init__(self, group: dist.ProcessGroup, *, fused: bool = True) -> None:
        super().__init__()
        self.group = group.group_name
        self.fused = fused

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; all tensors are ``[batch, sequence / cp, heads, head_dim]``, keys and values may have fewer heads."""
        mixed: Tensor
        mixed, _ = ring_attention(query, torch.stack((key, value)), self.group, self.fused)
        return mixed


def attend(query: Tensor, pair: Tensor, group: str, fused: bool) -> tuple[Tensor, Tensor]:
    """Send keys and values round the ranks once; collective.

    Args:
        query: ``[batch, sequence, heads, head_dim]``.
        pair: keys and values, ``[2, batch, sequence, kv_heads, head_dim]``.
        group: name of the process group.
        fused: as of ``RingAttention``.

    Returns:
        The result, like ``query``, and the log-sum-exp of the scores, float32 ``[batch, heads, sequence]``.
    """
    ring, kernels = _resolve_process_group(cast("GroupName", group)), kernels_for(query, fused=fused)
    asked = dense(query).transpose(1, 2)
    mixed = torch.zeros(query.shape, dtype=torch.float32, device=query.device).transpose(1, 2)
    logs = torch.full(asked.shape[:-1], -torch.inf, dtype=torch.float32, device=query.device)
    for step, queries, keys, moving in _turns(pair, ring):
        key, value = moving[:, :, keys].transpose(2, 3)
        block, block_logs = kernels.forward(asked[..., queries, :], key, value, causal=step == 0)
        before, found = logs[..., queries], mixed[..., queries, :]
        merged = torch.logaddexp(before, block_logs)
        found.mul_((before - merged).exp()[..., None]).add_(block * (block_logs - merged).exp()[..., None])
        before.copy_(merged)
    return mixed.transpose(1, 2).to(query.dtype, copy=True), logs


def attend_backward(
    gradient: Tensor,
    query: Tensor,
    pair: Tensor,
    result: Tensor,
    logs: Tensor,
    group: str,
    fused: bool,
) -> tuple[Tensor, Tensor]:
    """Send them round again, with the gradients of keys and values (Dao et al. 2022, algorithm 4); collective.

    Args:
        gradient: of the result.
        query: as in the forward pass.
        pair: as in the forward pass.
        result: of the forward pass.
        logs: of the forward pass.
        group: name of the process group.
        fused: as in the forward pass.

    Returns:
        Gradients of ``query`` and ``pair``.
    """
    ring, kernels = _resolve_process_group(cast("GroupName", group)), kernels_for(query, fused=fused)
    asked, wanted, mixed = (dense(one).transpose(1, 2) for one in (query, gradient, result))
    of_query = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    of_moving = torch.zeros(pair.shape, dtype=torch.float32, device=query.device)
    for step, queries, keys, moving in _turns(pair, ring):
        key, value = moving[:, :, keys].transpose(2, 3)
        here, outer, whole = (one[..., queries, :] for one in (asked, wanted, mixed))
        found = kernels.backward(outer, here, key, value, whole, logs[..., queries], causal=step == 0)
        of_query[:, queries].add_(found[0].transpose(1, 2))
        of_moving[:, :, keys].add_(torch.stack(found[1:]).transpose(2, 3))
        of_moving = _next(of_moving, ring)
    return of_query.to(query.dtype, copy=True), of_moving.to(pair.dtype, copy=True)


ring_attention = torch.library.custom_op("atoll::ring_attention", attend, mutates_args=())
ring_attention_backward = torch.library.custom_op("atoll::ring_attention_backward", attend_backward, mutates_args=())

RING = torch.ops.atoll.ring_attention.default
RING_BACKWARD = torch.ops.atoll.ring_attention_backward.default
"""The operators by the names under which modes of PyTorch see them."""


@ring_attention.register_fake
def _(query: Tensor, pair: Tensor, group: str, fused: bool) -> tuple[Tensor, Tensor]:
    del pair, group, fused
    batch, sequence, heads, _ = query.shape
    return torch.empty_like(query, memory_format=torch.contiguous_format), query.new_empty(
        (batch, heads, sequence), dtype=torch.float32
    )


@ring_attention_backward.register_fake
def _(_gradient: Tensor, query: Tensor, pair: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    like = torch.contiguous_format
    return torch.empty_like(query, memory_format=like), torch.empty_like(pair, memory_format=like)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, str, bool], output: tuple[Tensor, Tensor]) -> None:
    query, pair, ctx.group, ctx.fused = inputs
    ctx.save_for_backward(query, pair, *output)


def _backward(ctx: Any, gradient: Tensor, of_logs: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
    del of_logs  # no result depends on them
    found = ring_attention_backward(gradient, *ctx.saved_tensors, ctx.group, ctx.fused)
    return *found, None, None


ring_attention.register_autograd(_backward, setup_context=_keep)


def _turns(pair: Tensor, ring: dist.ProcessGroup) -> Iterator[tuple[int, slice, slice, Tensor]]:
    """Send keys and values once round the ring; collective.

    Yields:
        The number of the turn; the queries and the keys that causality combines in it; and the keys and values that are
        at this rank, like ``pair``. The next ones are already on their way.
    """
    ranks, moving = ring.size(), dense(pair)
    for step in range(ranks):
        coming = _next(moving, ring) if step < ranks - 1 else moving
        yield step, *_needed(step, ring.rank(), pair.shape[2]), moving
        moving = coming


def _needed(step: int, rank: int, length: int) -> tuple[slice, slice]:
    """Return the queries of this rank, and the keys from the rank ``step`` before it, that causality combines."""
    half, every = length // 2, slice(None)
    if step == 0:
        return every, every
    return (every, slice(half)) if step <= rank else (slice(half, None), every)


def _next(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send to the next rank, and return what the previous rank sends, which may still be in flight."""
    ranks, rank = group.size(), group.rank()
    flat = tensor.contiguous().flatten()
    sent, received = [0] * ranks, [0] * ranks
    sent[(rank + 1) % ranks] = received[(rank - 1) % ranks] = flat.numel()
    arrived: Tensor = all_to_all_single(flat, received, sent, group)
    return arrived.view(tensor.shape)
