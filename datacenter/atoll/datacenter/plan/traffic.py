"""What travels between ranks in one step, by axis and collective.

Bytes are those of the whole buffer, as ``machine.cost`` and NCCL's tests count them: what an all-gather ends with,
what a reduce-scatter starts with, what each rank holds of an all-reduce or all-to-all. What a rank sends of it is the
cost model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from atoll.datacenter.plan.activations import Activations, activations_of, tokens_of
from atoll.datacenter.plan.formula import Figure, given

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.datacenter.plan.layout import Layout, Task
    from atoll.datacenter.plan.stages import Share

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send"]
Axis = Literal["pp", "dp_replicate", "fsdp", "loss", "cp", "tp", "ep"]
When = Literal["forward", "backward", "again", "gather", "scatter"]
"""In a block's forward pass, its backward pass or its repetition; or FSDP's, of a unit."""


@dataclass(frozen=True, slots=True)
class Message:
    """Collectives that are alike, in one step of one rank.

    Attributes:
        axis: along which ranks talk.
        kind: of collective.
        when: it happens.
        size: bytes of one whole buffer.
        count: how often in a step.
        what: it carries.
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
    """Everything that this rank takes part in during one step."""
    found = list(_sharding(task, layout, share))
    if layout.dims.tp > 1:
        found += _tensor(task, layout, share)
    if layout.dims.cp > 1:
        found += _context(task, layout, share)
    if layout.dims.ep > 1:
        found += _experts(task, layout, share)
    if layout.dims.pp > 1:
        found += _pipeline(task, layout, share)
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


def _sharding(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """FSDP's: one unit for each block, one for the rest (Zhao et al. 2023, section 3; habits in ``parallel.data``)."""
    blocks, passes = given("blocks on this rank", share.all_blocks), given("micro_batches", layout.micro_batches)
    block, root = unit_elements(task, layout), root_elements(task, layout, share)
    once = given("once a step", 1)
    scatters = passes if layout.method in {"zero2", "zero3"} and layout.dims.pp == 1 else once
    if layout.method != "ddp":
        gathers = (2 * passes if layout.dims.pp == 1 else once) if layout.method == "zero3" else once
        root_gathers = passes if layout.method == "zero3" and layout.dims.pp == 1 else once
        yield Message("fsdp", "all_gather", "gather", block * task.width, blocks * gathers, "parameters of blocks")
        yield Message(
            "fsdp", "reduce_scatter", "scatter", block * task.reduce_width, blocks * scatters, "gradients of blocks"
        )
        if root.value:
            yield Message("fsdp", "all_gather", "gather", root * task.width, root_gathers, "other parameters")
            yield Message("fsdp", "reduce_scatter", "scatter", root * task.reduce_width, scatters, "other gradients")
    if layout.replicas > 1:
        axis: Axis = "loss" if layout.method == "ddp" else "dp_replicate"
        shards = given("shards", layout.shards)
        yield Message(
            axis, "all_reduce", "scatter", block * task.reduce_width / shards, blocks * scatters, "gradients of blocks"
        )
        yield Message(axis, "all_reduce", "scatter", root * task.reduce_width / shards, scatters, "other gradients")


def _tensor(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Shoeybi et al. 2019, section 3; with ``sequence`` Korthikanti et al. 2022, section 4.2.2."""
    acts = activations_of(task, layout)
    passes = given("micro_batches", layout.micro_batches)
    hidden = _hidden(task, layout)
    blocks = given("blocks on this rank", share.all_blocks)
    if task.job.tensor_parallel.sequence:
        yield from _sequence(layout, share, hidden)
        norms = blocks * 2 + (1 if share.last else 0)
        yield Message(
            "tp", "all_reduce", "backward", task.shape.sizes.dim * task.width, norms * passes, "gradients of norms"
        )
    else:
        forwards = 2 * (2 if layout.checkpointing == "full" else 1)
        inputs = given("column-cut matrices of a block", 5)
        yield Message("tp", "all_reduce", "forward", hidden, blocks * forwards * passes, "results of row-cut matrices")
        yield Message("tp", "all_reduce", "backward", hidden, blocks * inputs * passes, "gradients of hidden states")
        ends = int(share.first) + int(share.last)
        if ends:
            yield Message("tp", "all_reduce", "forward", hidden, ends * passes, "embedding and output")
    if share.last:
        yield from _loss(task, layout, acts, passes)


def _sequence(layout: Layout, share: Share, hidden: Figure) -> Iterator[Message]:
    passes = given("micro_batches", layout.micro_batches)
    blocks = given("blocks on this rank", share.all_blocks)
    again_gathers = 0 if layout.checkpointing == "none" else 2
    again_scatters = (
        1 if layout.checkpointing == "full" else 0
    )  # the last one is not needed again; selective keeps them
    for when, gathers, scatters in (("forward", 2, 2), ("backward", 2, 2), ("again", again_gathers, again_scatters)):
        place: When = "forward" if when == "forward" else "backward" if when == "backward" else "again"
        if gathers:
            yield Message("tp", "all_gather", place, hidden, blocks * gathers * passes, f"hidden states, {when}")
        if scatters:
            yield Message("tp", "reduce_scatter", place, hidden, blocks * scatters * passes, f"hidden states, {when}")
    for present, forward in ((share.first, "reduce_scatter"), (share.last, "all_gather")):
        if present:
            kinds: tuple[Kind, Kind] = ("reduce_scatter", "all_gather")
            ahead, back = kinds if forward == "reduce_scatter" else kinds[::-1]
            name = "embedding" if forward == "reduce_scatter" else "output"
            yield Message("tp", ahead, "forward", hidden, passes * 1, name)
            yield Message("tp", back, "backward", hidden, passes * 1, f"gradient of {name}")


def _loss(task: Task, layout: Layout, acts: Activations, passes: Figure) -> Iterator[Message]:
    if task.job.tensor_parallel.loss:
        tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
        yield Message(
            "tp", "all_reduce", "forward", 4 * tokens.count, 3 * passes, "largest logit, sum, log-probability"
        )
    else:
        yield Message("tp", "all_gather", "forward", acts.logits * 1, passes * 1, "logits")


def _context(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Queries, keys, values to heads, the result back (Jacobs et al. 2023, section 3.1); selective keeps what came."""
    sizes, tp = task.shape.sizes, given("tp", layout.dims.tp)
    tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
    calls = given("blocks on this rank", share.all_blocks) * layout.micro_batches
    heads = tokens.count * sizes.head_dim * task.width / tp
    whens: tuple[When, ...] = (
        ("forward", "backward", "again") if layout.checkpointing == "full" else ("forward", "backward")
    )
    for when in whens:
        yield Message("cp", "all_to_all", when, heads * sizes.heads, 2 * calls, f"queries and results, {when}")
        yield Message("cp", "all_to_all", when, heads * sizes.kv_heads, 2 * calls, f"keys and values, {when}")


def _experts(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Tokens to their experts and back (Lepikhin et al. 2020, section 3.2), evenly spread."""
    sizes = task.shape.sizes
    tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
    calls = given("blocks on this rank", share.all_blocks) * layout.micro_batches
    routed = tokens.count * sizes.top_k * sizes.dim * task.width / tokens.between
    whens: tuple[When, ...] = (
        ("forward", "backward", "again") if layout.checkpointing == "full" else ("forward", "backward")
    )
    for when in whens:
        yield Message("ep", "all_to_all", when, routed, 2 * calls, f"tokens to experts and back, {when}")


def _pipeline(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """One hidden state for each micro-batch and each boundary that this rank sends over, and its gradient back."""
    boundary = activations_of(task, layout).boundary
    stages = len(share.blocks)
    passes = given("micro_batches", layout.micro_batches)
    ahead, back = stages - int(share.last), stages - int(share.first)
    for count, what in ((ahead, "hidden states"), (back, "their gradients")):
        if count:
            yield Message("pp", "send", "forward", boundary, count * passes, what)


def _hidden(task: Task, layout: Layout) -> Figure:
    tokens = tokens_of(task, layout.micro_batch, layout.dims.cp, layout.dims.tp)
    return (tokens.count * task.shape.sizes.dim * task.width).called("hidden states", "bytes")
