"""Parameters of one rank by unit of FSDP, and what data parallelism sends of them in a step."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.datacenter.plan.message import Message
from atoll.datacenter.sizing.formula import Figure, given

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.datacenter.plan.layout import Layout, Task
    from atoll.datacenter.plan.message import Axis
    from atoll.datacenter.plan.stages import Share


def unit_elements(task: Task, layout: Layout) -> Figure:
    """Parameters of one block on one rank, gathered: routed experts over ``ep``, matrices over ``tp``."""
    return parameters_of_block(task, layout.dims.tp, layout.dims.ep)


@lru_cache(maxsize=4096)
def parameters_of_block(task: Task, tp: int, ep: int) -> Figure:
    """Parameters of one block on a rank of these degrees, gathered."""
    shape = task.shape
    cut = (shape.attention + shape.dense) / given("tp", tp) + shape.whole
    if shape.experts.value:
        cut = cut + shape.experts / given("tp", tp) / given("ep", ep)
    if shape.frozen:
        cut = cut + shape.adapters
    return cut.called("parameters of a block on one rank", "elements")


def spared_by_float8(task: Task, tp: int) -> Figure:
    """Bytes that gathering a block's matrices in float8 saves; 0 if FSDP does not gather in float8."""
    if not task.job.precision.float8_gather:
        return Figure(0.0)
    matrices = (task.shape.attention + task.shape.dense) / given("tp", tp)
    spared = (task.width - given("bytes of a float8", 1)) * matrices
    return spared.called("bytes that float8 spares in a gathered block", "bytes")


def root_elements(task: Task, layout: Layout, share: Share) -> Figure:
    """Parameters outside blocks on one rank, gathered."""
    return outside_blocks(task, layout.dims.tp, first=share.first, last=share.last)


@lru_cache(maxsize=4096)
def outside_blocks(task: Task, cut: int, *, first: bool, last: bool) -> Figure:
    """Parameters before the blocks, after them, or both, on one of ``cut`` tensor-parallel ranks, gathered."""
    shape, tp = task.shape, given("tp", cut)
    found = Figure(0.0)
    if first:
        found = found + shape.embedding / tp
    if last:
        output = shape.embedding if shape.tied and not first else shape.output
        found = found + output / tp + shape.last_norm
    return found.called("parameters outside blocks on one rank", "elements")


def dealt_elements(task: Task, layout: Layout) -> Figure:
    """Parameters of one block's routed experts on one rank, if ``ep`` distributes them: a separate FSDP unit."""
    if layout.dims.ep == 1:
        return Figure(0.0)
    return (task.shape.experts / given("tp", layout.dims.tp) / given("ep", layout.dims.ep)).called(
        "experts of a block on one rank", "elements"
    )


def sharded(task: Task, layout: Layout, blocks: float, elements: Figure) -> Figure:
    """This rank's share of parameters of this many blocks, sharded over the ranks that hold the same."""
    dealt = blocks * dealt_elements(task, layout)
    shards, of_experts = given("shards", layout.shards), given("shards of experts", layout.dims.efsdp)
    return (elements - dealt) / shards + dealt / of_experts if dealt.value else elements / shards


def sharding_messages(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Collectives of FSDP: one unit per block, one for the rest (Zhao et al. 2023, section 3; ``parallel.data``).

    A unit that one rank holds whole is neither gathered nor scattered.
    """
    dealt = dealt_elements(task, layout)
    whole, root = unit_elements(task, layout), root_elements(task, layout, share)
    block = whole - dealt if dealt.value else whole
    learning = task.shape.adapters if task.shape.frozen else block
    learning_root = Figure(0.0) if task.shape.frozen else root
    count = given("blocks on this rank", share.all_blocks)
    units: tuple[tuple[Axis, Figure, Figure, Figure, str], ...] = (
        ("fsdp", block, learning, count, "blocks"),
        ("efsdp", dealt, dealt, count, "experts"),
        ("fsdp", root, learning_root, given("units", 1), "other parameters"),
    )
    for axis, size, gradient, number, what in units:
        gathers, scatters = gathers_of(layout, root=what == "other parameters"), scatters_of(layout)
        if size.value and _shards(layout, axis) > 1:
            travels = size * task.width
            if what == "blocks" and task.job.precision.float8_gather:
                travels = travels - spared_by_float8(task, layout.dims.tp)
            yield Message(axis, "all_gather", "gather", travels, number * gathers, what)
        if gradient.value:
            sums = given("once a step", 1) if task.job.precision.reduce == "float32" else scatters
            counts = (number * scatters, number * sums)
            yield from _gradients(layout, axis, gradient * task.reduce_width, counts, f"gradients of {what}")


def _shards(layout: Layout, axis: Axis) -> int:
    return layout.dims.efsdp if axis == "efsdp" else layout.shards


def gathers_of(layout: Layout, *, root: bool) -> Figure:
    """Return how often a unit's parameters are gathered in a step."""
    passes, once = given("micro_batches", layout.micro_batches), given("once a step", 1)
    if layout.method != "zero3":
        return once
    if layout.dims.pp > 1:
        return once if root else passes + 1  # freed after each forward pass
    return passes if root else 2 * passes


def scatters_of(layout: Layout) -> Figure:
    """Return how often a gradient is scattered, or summed, over the ranks that hold its parameter in a step."""
    if layout.dims.pp > 1 or layout.method in {"ddp", "zero1"}:
        return given("once a step", 1)
    return given("micro_batches", layout.micro_batches)


def _gradients(layout: Layout, axis: Axis, size: Figure, counts: tuple[Figure, Figure], what: str) -> Iterator[Message]:
    """Gradients are scattered over the ranks that shard them, then summed over replicas, each with its count."""
    if (shards := _shards(layout, axis)) > 1:
        yield Message(axis, "reduce_scatter", "scatter", size, counts[0], what)
        size = size / given("shards", shards)
    if layout.replicas > 1:
        replicas: Axis = "loss" if layout.method == "ddp" else "dp_replicate"
        yield Message(replicas, "all_reduce", "scatter", size, counts[1], what)
