"""Sum encoded blocks over ranks.

What could not be sent remains in the residuals, so that at any time

    sum over ranks and steps of gradients = sum over steps of results + sum over ranks of residuals

up to rounding. Every rank adds in order of rank, so all get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from atoll.datacenter.compression.encoders import Encoder
    from atoll.datacenter.compression.residuals import Flat
    from atoll.datacenter.compression.traffic import Traffic

all_gather: Callable[..., object] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""PyTorch 2.13 renamed it."""


def gather_sum(flat: Flat, encoder: Encoder, group: dist.ProcessGroup, traffic: Traffic) -> Tensor:
    """Every rank receives all messages and adds them up; each rank sends N - 1 messages.

    Memory: N messages and two float32 per element, temporarily.

    Returns:
        float32 ``[blocks, block]``: the sum; the residuals become what this rank's message leaves out.
    """
    message = encoder.encode(flat.values, flat.sizes)
    everybodys = message.new_empty(traffic.ranks * message.shape[0], message.shape[1])
    all_gather(everybodys, message, group=group)
    traffic.all_gather(message.numel())
    flat.values.sub_(flat.without_padding(encoder.decode(message)))
    return flat.without_padding(_added(everybodys, encoder, traffic.ranks))


def scatter_sum(flat: Flat, encoder: Encoder, group: dist.ProcessGroup, traffic: Traffic) -> Tensor:
    """Each rank sums the blocks that it owns and sends the sums to all: at most two messages, for any number of ranks.

    A sum is encoded again, and the error goes into its owner's residual: only the sum of all residuals matters. Block b
    of the model is owned by rank b mod N; its bucket does not matter.

    Memory: two messages and two float32 per element, temporarily.

    Returns:
        float32 ``[blocks, block]``: the sum.
    """
    message = encoder.encode(flat.values, flat.sizes)
    flat.values.sub_(flat.without_padding(encoder.decode(message)))
    order = torch.argsort(flat.numbers % traffic.ranks, stable=True)
    counts = torch.bincount(flat.numbers % traffic.ranks, minlength=traffic.ranks).tolist()
    rank = group.rank()
    mine = torch.split(order, counts)[rank]
    received = message.new_empty(traffic.ranks * len(mine), message.shape[1])
    dist.all_to_all_single(received, message[order], [len(mine)] * traffic.ranks, counts, group=group)
    traffic.all_to_all(message.numel(), len(mine) * encoder.block_bytes)
    sums = _added(received, encoder, traffic.ranks)
    answer = encoder.encode(sums, flat.sizes[mine])
    flat.values[mine] += sums - encoder.decode(answer)
    flat.without_padding(flat.values)
    total = torch.empty_like(flat.values)
    total[order] = encoder.decode(_gathered(answer, counts, group, traffic))
    return flat.without_padding(total)


def _added(messages: Tensor, encoder: Encoder, ranks: int) -> Tensor:
    """Add up the decoded messages of all ranks, ``[ranks * blocks, block_bytes]``, in order of rank."""
    first, *others = messages.chunk(ranks) if messages.numel() else (messages,)
    total = encoder.decode(first)
    for one in others:
        total += encoder.decode(one)
    return total


def _gathered(answer: Tensor, counts: list[int], group: dist.ProcessGroup, traffic: Traffic) -> Tensor:
    """Gather the answers of all ranks in order. Their lengths differ by a few blocks and are padded for sending."""
    longest = max(counts)
    padded = answer.new_zeros(longest, answer.shape[1])
    padded[: answer.shape[0]] = answer
    everybodys = answer.new_empty(traffic.ranks * longest, answer.shape[1])
    all_gather(everybodys, padded, group=group)
    traffic.all_gather(padded.numel())
    parts = everybodys.view(traffic.ranks, longest, -1)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
