"""Memory that PyTorch's allocator has reserved for streams of FSDP's collectives, beside what the passes hold.

The allocator gives a freed segment only to the stream that it was reserved for. FSDP2 (torch 2.11 to 2.13) takes the
buffers of all-gathers from its copy-in stream and the sharded gradients from its reduce-scatter stream, and everything
else from the stream that computes. So these bytes are reserved during the whole step, also while they hold nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.datacenter.plan.buffers import units_of
from atoll.datacenter.plan.layout import Layout
from atoll.datacenter.plan.stages import Share
from atoll.datacenter.plan.states import states_of
from atoll.datacenter.sizing.formula import Figure, largest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.datacenter.mesh.dims import ParallelDims
    from atoll.datacenter.plan.layout import Method, Task

_NOTHING = Figure(0.0)


@dataclass(frozen=True, slots=True)
class Pools:
    """Memory that streams of collectives have reserved on a rank.

    Attributes:
        gathers: the most bytes that buffers of all-gathers take: a unit's is freed after the next one is gathered.
        gathering: the part of these bytes in use, at the moments of ``memory`` that gather.
        shards: bytes of sharded gradients.
    """

    gathers: Figure
    gathering: Mapping[str, Figure]
    shards: Figure

    def idle(self, moment: str, *, with_shards: bool) -> Figure:
        """Return the reserved bytes that hold nothing at a moment with, or without, sharded gradients."""
        empty = self.gathers - self.gathering.get(moment, _NOTHING)
        if not with_shards:
            empty = empty + self.shards
        return empty.called("reserved by streams of collectives", "bytes")

    def idle_bytes(self, moment: str, *, with_shards: bool) -> float:
        """Return ``idle`` without a formula."""
        empty = self.gathers.value - self.gathering.get(moment, _NOTHING).value
        return empty if with_shards else empty + self.shards.value


def pools_of(task: Task, layout: Layout, share: Share) -> Pools:
    """Return the pools of a rank; layouts that differ in micro-batches and recomputation share the figures."""
    return _pools(task, layout.dims, layout.method, share.all_blocks, (share.first, share.last))


@lru_cache(maxsize=4096)
def _pools(task: Task, dims: ParallelDims, method: Method, blocks: int, ends: tuple[bool, bool]) -> Pools:
    layout, share = Layout(dims, method, 1, 1, "none"), Share(0, (blocks,), *ends)
    if layout.plain_ddp:
        return Pools(_NOTHING, {}, _NOTHING)
    shards = states_of(task, layout, share).gradients
    if layout.shards == 1:  # nothing is gathered
        return Pools(_NOTHING, {}, shards)
    units = units_of(task, layout, share)
    pairs = largest(units.first + units.block, 2 * units.block, units.block + units.last)
    gathering: dict[str, Figure] = {}
    if dims.pp == 1:
        gathering["output"] = units.last + units.block
        if method == "zero3":
            gathering |= dict.fromkeys(("projection", "backward", "second", "scatter"), units.block)
    return Pools(pairs.called("buffers of two all-gathers", "bytes"), gathering, shards)
