"""All messages between ranks in one step: of data, tensor, context, expert and pipeline parallelism, and of Muon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.datacenter.job.loss_chunks import loss_chunk_tokens
from atoll.datacenter.plan.activations import activations_of, tokens_of
from atoll.datacenter.plan.bubble import V_SHAPED
from atoll.datacenter.plan.layout import MASTER_BYTES
from atoll.datacenter.plan.message import Message
from atoll.datacenter.plan.muon import muon_messages
from atoll.datacenter.plan.sharding import scatters_of, sharding_messages
from atoll.datacenter.sizing.formula import Figure, given

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.datacenter.plan.layout import Layout, Task
    from atoll.datacenter.plan.message import When
    from atoll.datacenter.plan.stages import Share


def messages(task: Task, layout: Layout, share: Share) -> list[Message]:
    """Return all messages of this rank in one step."""
    return [*collectives(task, layout, share), *sends(task, layout, share)]


def collectives(task: Task, layout: Layout, share: Share) -> list[Message]:
    """Return all messages except a pipeline's sends: they do not depend on its schedule."""
    found = list(sharding_messages(task, layout, share))
    if layout.dims.tp > 1:
        found += _tensor(task, layout, share)
    if layout.dims.cp > 1:
        found += _context(task, layout, share)
    if layout.dims.ep > 1:
        found += _experts(task, layout, share)
    return [*found, *muon_messages(task, layout, share)]


def _tensor(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Tensor parallelism: Shoeybi et al. 2019, section 3; with ``sequence`` Korthikanti et al. 2022, section 4.2.2."""
    passes, hidden = given("micro_batches", layout.micro_batches), _hidden(task, layout)
    blocks = given("blocks on this rank", share.all_blocks)
    if task.job.tensor_parallel.sequence:
        yield from _sequence(task, layout, share, hidden)
    else:
        forwards = 2 * (2 if layout.checkpointing == "full" else 1)
        inputs = given("column-cut matrices of a block", 5)
        yield Message("tp", "all_reduce", "forward", hidden, blocks * forwards * passes, "results of row-cut matrices")
        yield Message("tp", "all_reduce", "backward", hidden, blocks * inputs * passes, "gradients of hidden states")
        ends = int(share.first) + int(share.last)
        if ends:
            yield Message("tp", "all_reduce", "forward", hidden, ends * passes, "embedding and output")
    yield from _whole_parts(task, layout, share)
    yield from _odd_parts(task, layout, blocks * passes, hidden)
    if share.last:
        yield from _loss(task, layout, passes)


def _whole_parts(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Gradients of parameters that ``tp`` does not divide; each rank has a summand.

    They are summed when FSDP reduces them, or before they are cast to another format for that.
    """
    if task.shape.frozen:
        return
    sizes, sequence = task.shape.sizes, task.job.tensor_parallel.sequence
    blocks, width = given("blocks on this rank", share.all_blocks), task.width
    cast = task.reduce_width.value != width.value
    times = given("micro_batches", layout.micro_batches) if cast else scatters_of(layout)
    if sequence:
        norms = blocks * 2 + (1 if share.last else 0)
        yield Message("tp", "all_reduce", "backward", sizes.dim * width, norms * times, "gradients of norms")
    if task.job.model.qk_norm:
        norms = blocks * 2
        yield Message("tp", "all_reduce", "backward", sizes.head_dim * width, norms * times, "gradients of head norms")
    if task.job.model.moe is not None and sequence:
        router = sizes.dim * sizes.experts * width
        yield Message("tp", "all_reduce", "backward", router, blocks * times, "gradients of routers")


def _odd_parts(task: Task, layout: Layout, times: Figure, hidden: Figure) -> Iterator[Message]:
    """Traffic of experts and adapters: each rank has a summand of a gradient that all ranks need whole."""
    model = task.job.model
    if model.moe is not None and task.job.tensor_parallel.sequence:
        yield Message("tp", "all_reduce", "backward", hidden, 1 * times, "gradients of routed hidden states")
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
        chunk = loss_chunk_tokens(task.job, micro_batch=layout.micro_batch, cp=dims.cp, tp=dims.tp, head=task.has_head)
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
    adjacent = layout.schedule in V_SHAPED and share.rank == layout.dims.pp - 1  # its own two stages
    passes = given("micro_batches", layout.micro_batches)
    ahead, back = stages - int(share.last) - int(adjacent), stages - int(share.first) - int(adjacent)
    for count, what in ((ahead, "hidden states"), (back, "their gradients")):
        if count:
            yield Message("pp", "send", "forward", boundary, count * passes, what)


def _hidden(task: Task, layout: Layout) -> Figure:
    tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
    return (tokens.count * task.shape.sizes.dim * task.width).called("hidden states", "bytes")
