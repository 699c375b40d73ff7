"""The row of ring attention: one rank's block by fused kernels and by plain products, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.parallel.ring import RingAttention
from benchmarks.figures import Figure
from benchmarks.silo.gpu.sizes import Size
from benchmarks.silo.gpu.speed import one_rank, seconds_of

COMMAND = "python -m benchmarks.silo gpu"
_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def ring_attention(size: Size) -> Iterator[Figure]:
    """Time and memory of a ring of one rank; a longer one has as much work in each block, and sends while it works."""
    with one_rank() as world:
        inputs = [_drawn(size, heads, world.device) for heads in size.ring_heads]
        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("no process group")
        ways: dict[str, Callable[[], object]] = {
            name: partial(_pass, RingAttention(group, fused=name == "fused"), inputs) for name in ("fused", "plain")
        }
        peaks = {name: _peak(way) for name, way in ways.items()} if world.device.type == "cuda" else {}
        found = seconds_of(ways, size, world.device)
    name = f"ring attention of {size.ring_sequence} tokens, fused kernels beside plain products"
    yield Figure.at_least(name, found["plain"] / found["fused"], "times", 1.0, COMMAND)
    for way, peak in peaks.items():
        yield Figure.stated(f"  peak memory, {way}", peak / 2**30, "GiB", COMMAND)


def _drawn(size: Size, heads: int, device: torch.device) -> Tensor:
    shape = (1, size.ring_sequence, heads, size.ring_head_dim)
    return torch.randn(shape, device=device, dtype=_FORMATS[size.formats[0]], requires_grad=True)


def _pass(attention: RingAttention, inputs: list[Tensor]) -> None:
    attention(*inputs).sum().backward()


def _peak(way: Callable[[], object]) -> int:
    torch.cuda.reset_peak_memory_stats()
    way()
    return torch.cuda.max_memory_allocated()
