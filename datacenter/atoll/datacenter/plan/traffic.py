"""Messages between ranks in one step, by axis and collective.

Bytes are those of the whole buffer, as ``machine.cost`` and NCCL's tests count them: the result of an all-gather, the
input of a reduce-scatter, what each rank holds of an all-reduce or all-to-all. The cost model computes what a rank
sends of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from atoll.datacenter.job.loss_chunks import loss_chunk_tokens
from atoll.datacenter.plan.activations import activations_of, tokens_of
from atoll.datacenter.plan.bubble import V_SHAPED
from atoll.datacenter.plan.layout import MASTER_BYTES
from atoll.datacenter.sizing.formula import Figure, given

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.datacenter.plan.layout import Layout, Task
    from atoll.datacenter.plan.stages import Share

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send"]
Axis = Literal["pp", "dp_replicate", "fsdp", "efsdp", "loss", "cp", "tp", "ep"]
When = Literal["forward", "backward", "again", "gather", "scatter"]
"""In a block's forward pass, its backward pass or its recomputation; or FSDP's gather and scatter of a unit."""


@dataclass(frozen=True, slots=True)
class Message:
    """Similar collectives in one step of one rank.

    Attributes:
        axis: axis along which ranks communicate.
        kind: kind of the collective.
        when: part of the step.
        size: bytes of one whole buffer.
        count: number of calls in a step.
        what: content.
    """

    axis: Axis
    kind: Kind
    when: When
    size: Figure
    count: Figure
    what: str

    @property
    def total(self) -> Figure:
        """Bytes of all of them."""
        return (self.size * self.count).called(f"{self.what}: {self.kind} over {self.axis}", "bytes")


def messages(task: Task, layout: Layout, share: Share) -> list[Message]:
    """Return all messages of this rank in one step."""
    return [*collectives(task, layout, share), *sends(task, layout, share)]


def collectives(task: Task, layout: Layout, share: Share) -> list[Message]:
    """Return all messages except a pipeline's sends: they do not depend on its schedule."""
    found = list(_sharding(task, layout, share))
    if layout.dims.tp > 1:
        found += _tensor(task, layout, share)
    if layout.dims.cp > 1:
        found += _context(task, layout, share)
    if layout.dims.ep > 1:
        found += _experts(task, layout, share)
    return found


def unit_elements(task: Task, layout: Layout) -> Figure:
    """Parameters of one block on one rank, gathered: routed experts over ``ep``, matrices over ``tp``."""
    return _unit_elements(task, layout.dims.tp, layout.dims.ep)


@lru_cache(maxsize=4096)
def _unit_elements(task: Task, tp: int, ep: int) -> Figure:
    shape = task.shape
    cut = (shape.attention + shape.dense) / given("tp", tp) + shape.whole
    if shape.experts.value:
        cut = cut + shape.experts / given("tp", tp) / given("ep", ep)
    if shape.frozen:
        cut = cut + shape.adapters
    return cut.called("parameters of a block on one rank", "elements")


def spared_by_float8(task: Task, layout: Layout) -> Figure:
    """Bytes that gathering a block's matrices in float8 saves; 0 if FSDP does not gather in float8."""
    if not task.job.precision.float8_gather:
        return Figure(0.0)
    matrices = (task.shape.attention + task.shape.dense) / given("tp", layout.dims.tp)
    spared = (task.width - given("bytes of a float8", 1)) * matrices
    return spared.called("bytes that float8 spares in a gathered block", "bytes")


def root_elements(task: Task, layout: Layout, share: Share) -> Figure:
    """Parameters outside blocks on one rank, gathered."""
    return _root_elements(task, layout.dims.tp, share.first, share.last)


@lru_cache(maxsize=4096)
def _root_elements(task: Task, cut: int, first: bool, last: bool) -> Figure:
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


def _sharding(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Collectives of FSDP: one unit per block, one for the rest (Zhao et al. 2023, section 3; ``parallel.data``)."""
    dealt = dealt_elements(task, layout)
    whole, root = unit_elements(task, layout), root_elements(task, layout, share)
    block = whole - dealt if dealt.value else whole
    learning = task.shape.adapters if task.shape.frozen else block
    learning_root = Figure(0.0) if task.shape.frozen else root
    count = given("blocks on this rank", share.all_blocks)
    for axis, size, gradient, units, what in (
        ("fsdp", block, learning, count, "blocks"),
        ("efsdp", dealt, dealt, count, "experts"),
        ("fsdp", root, learning_root, given("units", 1), "other parameters"),
    ):
        if size.value:
            place: Axis = "efsdp" if axis == "efsdp" else "fsdp"
            gathers, scatters = _transfers(layout, root=what == "other parameters")
            if layout.method != "ddp":
                travels = size * task.width
                if what == "blocks" and task.job.precision.float8_gather:
                    travels = travels - spared_by_float8(task, layout)
                yield Message(place, "all_gather", "gather", travels, units * gathers, what)
            if gradient.value:
                travelling = gradient * task.reduce_width
                sums = given("once a step", 1) if task.job.precision.reduce == "float32" else scatters
                counts = (units * scatters, units * sums)
                yield from _gradients(layout, place, travelling, counts, f"gradients of {what}")


def _transfers(layout: Layout, *, root: bool) -> tuple[Figure, Figure]:
    """Return how often a unit's parameters are gathered and its gradients scattered in a step."""
    passes, once = given("micro_batches", layout.micro_batches), given("once a step", 1)
    if layout.dims.pp > 1 and layout.method == "zero3" and not root:  # freed after each forward pass
        return passes + 1, once
    if layout.dims.pp > 1 or layout.method in {"ddp", "zero1"}:
        return once, once
    if layout.method == "zero2":
        return once, passes
    return (passes if root else 2 * passes), passes


def _gradients(layout: Layout, axis: Axis, size: Figure, counts: tuple[Figure, Figure], what: str) -> Iterator[Message]:
    """Gradients are scattered over the ranks that shard them, then summed over replicas, each with its count."""
    shards = layout.dims.efsdp if axis == "efsdp" else layout.shards
    if layout.method == "ddp":
        yield Message("loss", "all_reduce", "scatter", size, counts[0], what)
        return
    yield Message(axis, "reduce_scatter", "scatter", size, counts[0], what)
    if layout.replicas > 1:
        yield Message("dp_replicate", "all_reduce", "scatter", size / given("shards", shards), counts[1], what)


def _tensor(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Tensor parallelism: Shoeybi et al. 2019, section 3; with ``sequence`` Korthikanti et al. 2022, section 4.2.2."""
    passes, hidden = given("micro_batches", layout.micro_batches), _hidden(task, layout)
    blocks = given("blocks on this rank", share.all_blocks)
    if task.job.tensor_parallel.sequence:
        yield from _sequence(task, layout, share, hidden)
        if not task.shape.frozen:
            norms = blocks * 2 + (1 if share.last else 0)
            size = task.shape.sizes.dim * task.width
            yield Message("tp", "all_reduce", "backward", size, norms * passes, "gradients of norms")
    else:
        forwards = 2 * (2 if layout.checkpointing == "full" else 1)
        inputs = given("column-cut matrices of a block", 5)
        yield Message("tp", "all_reduce", "forward", hidden, blocks * forwards * passes, "results of row-cut matrices")
        yield Message("tp", "all_reduce", "backward", hidden, blocks * inputs * passes, "gradients of hidden states")
        ends = int(share.first) + int(share.last)
        if ends:
            yield Message("tp", "all_reduce", "forward", hidden, ends * passes, "embedding and output")
    yield from _odd_parts(task, layout, blocks * passes, hidden)
    if share.last:
        yield from _loss(task, layout, passes)


def _odd_parts(task: Task, layout: Layout, times: Figure, hidden: Figure) -> Iterator[Message]:
    """Traffic of experts and adapters: each rank has a summand of a gradient that all ranks need whole."""
    sizes, model = task.shape.sizes, task.job.model
    if model.moe is not None and task.job.tensor_parallel.sequence:
        router = sizes.dim * sizes.experts * task.width
        yield Message("tp", "all_reduce", "backward", hidden, 1 * times, "gradients of routed hidden states")
        yield Message("tp", "all_reduce", "backward", router, 1 * times, "gradients of routers")
    if model.lora is not None:
        columns = len({"wq", "wk", "wv", "w1", "w3"} & set(model.lora.targets))
        tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
        narrow = tokens.count * given("lora rank", model.lora.rank) * task.width
        if columns:
            yield Message("tp", "all_reduce", "backward", narrow, columns * times, "gradients of adapters")


def _sequence(task: Task, layout: Layout, share: Share, hidden: Figure) -> Iterator[Message]:
    """Gathers before column-cut matrices, scatters after row-cut ones; the reverse in the backward pass."""
    passes = given("micro_batches", layout.micro_batches)
    blocks = given("blocks on this rank", share.all_blocks)
    routed, shared = task.job.model.moe is not None, int(task.shape.sizes.shared.value > 0)
    gathers = {"forward": 2, "backward": 2 + shared, "again": 0 if layout.checkpointing == "none" else 2}
    scatters = {"forward": 2 + shared, "backward": 2 - int(routed) + shared}
    scatters["again"] = 1 + shared if layout.checkpointing == "full" else 0  # without the last; selective keeps them
    unwanted = int(share.first and task.shape.frozen)  # nothing before the first adapter needs a gradient
    whens: tuple[When, ...] = ("forward", "backward", "again")
    for when in whens:
        less = passes * unwanted if when == "backward" else Figure(0.0)
        if gathers[when]:
            yield Message("tp", "all_gather", when, hidden, blocks * gathers[when] * passes, f"hidden states, {when}")
        if scatters[when]:
            count = blocks * scatters[when] * passes - less
            yield Message("tp", "reduce_scatter", when, hidden, count, f"hidden states, {when}")
    if share.first:
        yield Message("tp", "reduce_scatter", "forward", hidden, passes * 1, "embedding")
        if not unwanted:
            yield Message("tp", "all_gather", "backward", hidden, passes * 1, "gradient of embedding")
    if share.last:
        yield Message("tp", "all_gather", "forward", hidden, passes * 1, "output")
        yield Message("tp", "reduce_scatter", "backward", hidden, passes * 1, "gradient of output")


def _loss(task: Task, layout: Layout, passes: Figure) -> Iterator[Message]:
    if task.job.tensor_parallel.loss:
        tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
        dims = layout.dims
        chunk = loss_chunk_tokens(task.job, micro_batch=layout.micro_batch, cp=dims.cp, tp=dims.tp, head=True)
        values, what = 3, "largest logit, sum, log-probability"
        if chunk is not None:
            values, what = 4, f"{what}, whether a rank has the label"
        yield Message("tp", "all_reduce", "forward", 4 * tokens.count, values * passes, what)
    else:
        yield Message("tp", "all_gather", "forward", activations_of(task, layout).logits * 1, passes * 1, "logits")


def _context(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Ulysses (Jacobs et al. 2023, section 3.1): queries, keys and values to heads, results back; or the ring."""
    sizes, tp = task.shape.sizes, given("tp", layout.dims.tp)
    tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
    calls = given("blocks on this rank", share.all_blocks) * layout.micro_batches
    heads = tokens.count * sizes.head_dim * task.width / tp
    if task.job.context_parallel.method == "ring":
        yield from _ring(task, layout, heads * sizes.kv_heads * 2, calls)
        return
    whens: tuple[When, ...] = (
        ("forward", "backward", "again") if layout.checkpointing == "full" else ("forward", "backward")
    )
    for when in whens:
        inputs = heads * (sizes.heads + 2 * sizes.kv_heads)
        yield Message("cp", "all_to_all", when, inputs, 1 * calls, f"queries, keys and values, {when}")
        yield Message("cp", "all_to_all", when, heads * sizes.heads, 1 * calls, f"results of attention, {when}")


def _ring(task: Task, layout: Layout, pair: Figure, calls: Figure) -> Iterator[Message]:
    """Liu et al. 2023: keys and values go round; again in the backward pass, and their float32 gradients once more."""
    hops = given("cp - 1", layout.dims.cp - 1)
    passes = 2 if layout.checkpointing == "full" else 1
    yield Message("cp", "all_to_all", "forward", pair, hops * calls * passes, "keys and values go round")
    yield Message("cp", "all_to_all", "backward", pair, hops * calls, "keys and values go round again")
    gradients = pair * given("bytes of a float32", MASTER_BYTES) / task.width
    yield Message("cp", "all_to_all", "backward", gradients, layout.dims.cp * calls, "their gradients go round")


def _experts(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Tokens to their experts and back (Lepikhin et al. 2020, section 3.2), evenly spread."""
    sizes = task.shape.sizes
    tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
    calls = given("blocks on this rank", share.all_blocks) * layout.micro_batches
    routed = padded(task, tokens.count * sizes.top_k * sizes.dim * task.width)
    whens: tuple[When, ...] = (
        ("forward", "backward", "again") if layout.checkpointing == "full" else ("forward", "backward")
    )
    for when in whens:
        yield Message("ep", "all_to_all", when, routed, 2 * calls, f"tokens to experts and back, {when}")


def padded(task: Task, rows: Figure) -> Figure:
    """Rows of experts, with free places where they are padded to their capacity (``models.slots``)."""
    moe = task.job.model.moe
    if moe is None or not moe.padded or moe.capacity_factor is None:
        return rows
    return rows * given("model.moe.capacity_factor", min(moe.capacity_factor, moe.experts / moe.top_k))


def sends(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """One hidden state for each micro-batch and each boundary that this rank sends across, and its gradient back."""
    if layout.dims.pp == 1:
        return
    boundary = activations_of(task, layout).boundary
    stages = len(share.blocks)
    turns = layout.schedule in V_SHAPED and share.rank == layout.dims.pp - 1  # its two stages are adjacent
    passes = given("micro_batches", layout.micro_batches)
    ahead, back = stages - int(share.last) - int(turns), stages - int(share.first) - int(turns)
    for count, what in ((ahead, "hidden states"), (back, "their gradients")):
        if count:
            yield Message("pp", "send", "forward", boundary, count * passes, what)


def _hidden(task: Task, layout: Layout) -> Figure:
    tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
    return (tokens.count * task.shape.sizes.dim * task.width).called("hidden states", "bytes")
