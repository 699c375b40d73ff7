"""Gathered parameters, and gradients of parameters on their way, at each moment of a step (``memory``).

FSDP2 (torch 2.13) gathers a unit into a buffer and copies it into its parameters. In forward passes it frees that
buffer after the next unit was gathered, in backward passes at once; there it gathers one block ahead. It sends a unit's
gradients from another buffer, which it frees when the next unit's gradients are sent. So the embedding's waits until
the output's, in the next micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.datacenter.plan.layout import MASTER_BYTES, Layout
from atoll.datacenter.plan.sharding import outside_blocks, parameters_of_block, spared_by_float8
from atoll.datacenter.plan.stages import Share
from atoll.datacenter.plan.states import states_of
from atoll.datacenter.sizing.formula import Figure, given, largest

if TYPE_CHECKING:
    from atoll.datacenter.mesh.dims import ParallelDims
    from atoll.datacenter.plan.layout import Method, Task

_NOTHING = Figure(0.0)


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes of these buffers by moment; ``memory`` says what the moments are."""

    output: Figure
    loss: Figure
    projection: Figure
    backward: Figure
    second: Figure
    scatter: Figure
    gradients: Figure


@dataclass(frozen=True, slots=True)
class Units:
    """Bytes of FSDP's units on one rank.

    Attributes:
        first: parameters before the blocks, gathered.
        block: of one block.
        last: parameters after the blocks.
        block_grad: gradients of one block, as computed.
        last_grad: those of ``last``.
        part_grad: those of one block that exist at its fullest moment: of the last feed-forward matrix.
        first_sent: gradients of ``first``, as sent.
        block_sent: those of one block.
        last_sent: those of ``last``.
        ending: what the last block of the backward pass adds at its end, or the embedding after it: the larger.
    """

    first: Figure
    block: Figure
    last: Figure
    block_grad: Figure
    last_grad: Figure
    part_grad: Figure
    first_sent: Figure
    block_sent: Figure
    last_sent: Figure
    ending: Figure


def buffers_of(task: Task, layout: Layout, share: Share) -> Buffers:
    """Return the buffers of a rank; layouts that differ in recomputation and schedule share the figures."""
    ends = (share.first, share.last)
    return _buffers(task, layout.dims, layout.method, share.all_blocks, ends, several=layout.micro_batches > 1)


@lru_cache(maxsize=4096)
def _buffers(
    task: Task, dims: ParallelDims, method: Method, blocks: int, ends: tuple[bool, bool], *, several: bool
) -> Buffers:
    layout, share = Layout(dims, method, 1, 2 if several else 1, "none"), Share(0, (blocks,), *ends)
    elements = states_of(task, layout, share).elements
    if layout.plain_ddp:
        low = task.width.value < MASTER_BYTES
        copies = (task.width * elements).called("autocast's copies", "bytes") if low else _NOTHING
        return Buffers(copies, copies, copies, copies, copies, copies, copies)
    units = units_of(task, layout, share)
    if method == "zero3" and dims.pp == 1:
        return _freed(units, layout)
    whole = task.width * elements
    if task.job.precision.float8_gather:
        whole = whole - given("blocks on this rank", blocks) * spared_by_float8(task, dims.tp)
    return _whole(units, layout, whole.called("gathered parameters", "bytes"))


def units_of(task: Task, layout: Layout, share: Share) -> Units:
    """Return FSDP's units on a rank."""
    tied = task.shape.tied or layout.method == "ddp"
    return _units(task, layout.dims.tp, layout.dims.ep, (share.first, share.last), one_end=tied)


@lru_cache(maxsize=4096)
def _units(task: Task, tp: int, ep: int, ends: tuple[bool, bool], *, one_end: bool) -> Units:
    """Return the units of a rank with these ends; layouts with the same degrees share the figures.

    Tied matrices, and replicas (``ddp``), have one unit for both ends, which is gathered first.
    """
    first = outside_blocks(task, tp, first=ends[0], last=ends[1] and one_end)
    last = outside_blocks(task, tp, first=False, last=ends[1] and not one_end)
    unit, width, sent = parameters_of_block(task, tp, ep), task.width, task.reduce_width
    block = (width * unit - spared_by_float8(task, tp)).called("gathered block", "bytes")
    before = (width * first).called("gathered before blocks", "bytes")
    after = (width * last).called("gathered output", "bytes")
    if task.shape.frozen:
        adapters = task.shape.adapters
        grad, travelling = width * adapters, sent * adapters
        none = _NOTHING
        return Units(before, block, after, grad, none, none, none, travelling, none, grad + travelling)
    experts = task.shape.experts / given("ep", ep) if task.shape.experts.value else _NOTHING
    part = width * (task.shape.dense + experts) / (3 * given("tp", tp))
    grad, first_sent, travelling = width * unit, sent * first, sent * unit
    ending = largest(grad + travelling, before + travelling, first_sent)
    return Units(before, block, after, grad, after, part, first_sent, travelling, sent * last, ending)


def _freed(units: Units, layout: Layout) -> Buffers:
    """Blocks are freed after each pass (``zero3``)."""
    first, block = units.first, units.block
    waiting = units.first_sent if layout.micro_batches > 1 else _NOTHING
    ends = (first + units.last + waiting).called("gathered outside blocks", "bytes")
    alone = layout.shards == 1  # nothing is gathered, so there are no buffers
    ahead = _NOTHING if alone else block
    inside = first + block + ahead
    return Buffers(
        output=ends if alone else ends + units.last + block,
        loss=ends,
        projection=ends + units.last_grad + ahead,
        backward=(inside + units.last_sent + units.part_grad).called("gathered and travelling", "bytes"),
        second=(inside + units.block_sent + units.part_grad).called("gathered and travelling", "bytes"),
        scatter=inside + units.block_grad + units.last_sent,
        gradients=first + block + units.ending,
    )


def _whole(units: Units, layout: Layout, whole: Figure) -> Buffers:
    """All parameters stay gathered."""
    pipeline = layout.dims.pp > 1
    each_time = layout.method == "zero2" and not pipeline
    sends = each_time or (layout.micro_batches == 1 and not pipeline)
    last_sent, block_sent = (units.last_sent, units.block_sent) if sends else (_NOTHING, _NOTHING)
    ends = whole + units.first_sent if each_time and layout.micro_batches > 1 else whole
    return Buffers(
        output=whole if pipeline or layout.shards == 1 else whole + units.last + units.block,
        loss=ends,
        projection=ends + units.last_grad,
        backward=(whole + last_sent + units.part_grad).called("gathered and travelling", "bytes"),
        second=(whole + block_sent + units.part_grad).called("gathered and travelling", "bytes"),
        scatter=whole + units.block_grad + last_sent,
        gradients=whole + units.ending,
    )
