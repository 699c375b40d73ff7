"""Duration of a step: work divided by rates, collectives that are not overlapped, and the pipeline's bubble.

Matrix products, attention and everything else are sequential (a roofline for each: Williams et al. 2009). Collectives
of tensor, context and expert parallelism block what follows and count fully. FSDP's collectives overlap the passes:
only the time beyond the passes counts. Ranks along ``pp`` wait for the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.datacenter.machine import DATA_SHEETS, Group, predict
from atoll.datacenter.plan.bubble import bubble
from atoll.datacenter.plan.layout import MASTER_BYTES
from atoll.datacenter.plan.message import Message
from atoll.datacenter.plan.muon import matrices_of, moved_by_muon, orthogonalising, spared_second_moments
from atoll.datacenter.plan.sharding import root_elements, sharded, unit_elements
from atoll.datacenter.plan.stages import Share
from atoll.datacenter.plan.traffic import collectives, sends
from atoll.datacenter.plan.work import block_work, end_work
from atoll.datacenter.sizing.flops import flops_per_token
from atoll.datacenter.sizing.formula import Figure, given, largest, total

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.datacenter.machine import MachineRates
    from atoll.datacenter.machine.cost import Collective
    from atoll.datacenter.mesh.dims import ParallelDims
    from atoll.datacenter.plan.layout import Layout, Task
    from atoll.datacenter.plan.message import Axis

_NOTHING = Figure(0.0)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Share of the rates that a training step reaches.

    Attributes:
        matmul: share for matrix products.
        float8: share for matrix products in float8, including scaling of the factors.
        attention: share of the rate of 16-bit matrix products.
        memory: share of memory bandwidth.
        network: share of links' bandwidth.
    """

    matmul: float
    float8: float
    attention: float
    memory: float
    network: float


OF_DATA_SHEETS = Efficiency(matmul=0.62, float8=0.52, attention=0.40, memory=0.70, network=0.75)
"""Shares of the peak rates of a 700 W part. They predict Llama 3 405B on 8,192 and 16,384 H100s, which were not used
for the fit, within 3 %. The share of float8 was fitted to Megatron-LM's 8B (docs/datacenter/planning.md)."""
OF_LIMITED_H100 = Efficiency(matmul=0.46, float8=0.40, attention=0.30, memory=0.50, network=0.70)
"""Shares of an H100 that is limited to 500 W: fitted to torchtitan's tables (``benchmarks.silo.published``)."""
OF_MEASUREMENTS = Efficiency(matmul=0.95, float8=0.8, attention=0.6, memory=0.9, network=0.95)
"""Shares of rates measured by ``atoll silo bench``, assuming that large operators reach them."""


FRAGMENTED = 0.05
"""Share of a device's memory that the allocator cannot use, because it is between tensors: assumed."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of a machine, and the share of them that a step reaches.

    Attributes:
        rates: the rates.
        efficiency: share of them that a step reaches.
        device: name of the device whose memory the rates have, if it is not the device whose speeds they are.
        why: why these speeds were chosen, for messages; empty if it needs no explanation.
    """

    rates: MachineRates
    efficiency: Efficiency
    device: str = ""
    why: str = ""

    @property
    def usable_bytes(self) -> int:
        """Memory of a device that a job may plan to fill, including the device's own context."""
        return int((1 - FRAGMENTED) * self.rates.memory_bytes)

    @classmethod
    def of(cls, rates: MachineRates) -> Machine:
        """Return the machine, with the efficiency for the source of its rates."""
        if rates not in DATA_SHEETS.values():
            return cls(rates, OF_MEASUREMENTS)
        return cls(rates, OF_LIMITED_H100 if rates == DATA_SHEETS["h100-500w"] else OF_DATA_SHEETS)

    def describe(self) -> str:
        """Name the device that a layout is planned for; with speeds of another device, also that one and the memory."""
        if not self.device:
            return self.rates.name
        memory = f"{self.rates.memory_bytes / 2**30:.1f} GiB for each rank"
        why = f", {self.why}" if self.why else ""
        return f"{self.device} ({memory}; speeds of {self.rates.name}{why})"

    def matmul(self, number_format: str) -> Figure:
        """Effective FLOP/s of matrix products."""
        share = self.efficiency.float8 if number_format == "float8" else self.efficiency.matmul
        peak = given(f"{number_format} rate", self.rates.matmul(number_format), "FLOP/s", self.rates.source)
        return (given("efficiency of matrix products", share) * peak).called("matrix products' rate", "FLOP/s")

    def attention(self, number_format: str) -> Figure:
        """Effective FLOP/s of attention, which does not use float8."""
        known = "bfloat16" if number_format == "float8" else number_format
        peak = given(f"{known} rate", self.rates.matmul(known), "FLOP/s", self.rates.source)
        return (given("efficiency of attention", self.efficiency.attention) * peak).called("attention's rate", "FLOP/s")

    def memory(self) -> Figure:
        """Effective bytes per second of memory."""
        peak = given("memory bandwidth", self.rates.memory_bytes_per_s, "bytes/s", self.rates.source)
        return (given("efficiency of memory", self.efficiency.memory) * peak).called("memory's rate", "bytes/s")


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of one micro-batch through all stages of one rank, including collectives that are not overlapped."""

    forward: Figure
    to_input: Figure
    to_weights: Figure

    @property
    def total(self) -> Figure:
        """Seconds of all three."""
        return self.forward + self.to_input + self.to_weights


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step, by part.

    Attributes:
        compute: passes of all micro-batches, without collectives.
        collectives: collectives of tensor, context and expert parallelism.
        sharding: collectives of data parallelism that passes do not hide.
        sends: sends of hidden states between stages.
        bubble: waiting time of a pipeline.
        update: update of the optimiser, with the matrices that Muon gathers and orthogonalises.
    """

    compute: Figure
    collectives: Figure
    sharding: Figure
    sends: Figure
    bubble: Figure
    update: Figure

    @property
    def total(self) -> Figure:
        """Seconds of a step."""
        parts = [self.compute, self.collectives, self.sharding, self.sends, self.bubble, self.update]
        return total(parts).called("step", "s")


def step_time(task: Task, layout: Layout, held: Iterable[Share], machine: Machine) -> StepTime:
    """Predict a step from the rank along ``pp`` with the longest passes."""
    slowest: tuple[float, StepTime] | None = None
    for share in {(share.all_blocks, share.first, share.last): share for share in held}.values():
        found = _of_rank(task, layout, share, machine)
        if slowest is None or found.total.value > slowest[0]:
            slowest = (found.total.value, found)
    if slowest is None:
        raise ValueError("no rank")
    return slowest[1]


def seconds_of(message: Message, dims: ParallelDims, machine: Machine) -> Figure:
    """Seconds of all these collectives, one after another."""
    group = group_of(message.axis, dims, machine.rates.ranks_per_node)
    size = message.size.value
    if message.kind == "send":
        link = machine.rates.intra if group.nodes == 1 else machine.rates.inter
        each, source = link.alpha_s + size / link.bytes_per_s, "alpha + bytes / rate"
    else:
        kind: Collective = message.kind
        cost = predict(kind, size, group, machine.rates)
        each, source = cost.seconds, f"{cost.algorithm}: {cost.formula}"
    one = given(
        f"one {message.kind} over {message.axis}", each, "s", f"{source}; p = {group.ranks} on {group.nodes} nodes"
    )
    spent = message.count * one / given("efficiency of links", machine.efficiency.network)
    return spent.called(f"{message.what}, {message.kind}", "s")


@lru_cache(maxsize=4096)
def group_of(axis: Axis, dims: ParallelDims, ranks_per_node: int) -> Group:
    """Return the ranks that communicate along an axis, and their nodes; inner axes are closer (``ParallelDims``)."""
    inner = {
        "tp": (dims.tp, 1),
        "ep": (dims.ep, dims.tp),
        "cp": (dims.cp, dims.tp),
        "fsdp": (dims.fsdp, dims.tp),
        "efsdp": (dims.efsdp, dims.tp * dims.ep),
        "dp_replicate": (dims.dp_replicate, dims.tp * dims.fsdp),
        "loss": (dims.loss, dims.tp),
        "pp": (dims.pp, dims.tp * dims.loss),
    }
    ranks, stride = inner[axis]
    near = min(ranks, max(1, ranks_per_node // stride))
    while ranks % near:
        near -= 1
    return Group(ranks, ranks // near)


def _of_rank(task: Task, layout: Layout, share: Share, machine: Machine) -> StepTime:
    """Return the step of a rank; what its schedule does not change is computed once for all schedules."""
    dims = layout.dims
    alike = replace(layout, schedule="1f1b", stages_per_rank=1)
    step, whole = _without_schedule(task, alike, Share(0, (share.all_blocks,), share.first, share.last), machine)
    if dims.pp == 1:
        return step
    sent = [seconds_of(message, dims, machine) for message in sends(task, layout, share)]
    waited = bubble(layout.schedule, dims.pp, layout.stages_per_rank, whole.forward, whole.to_input, whole.to_weights)
    return replace(step, sends=total(sent).called("sends", "s"), bubble=waited)


@lru_cache(maxsize=256)
def _without_schedule(task: Task, layout: Layout, share: Share, machine: Machine) -> tuple[StepTime, PassTimes]:
    """Return the step of a rank without bubble and sends, and its passes with their collectives."""
    bare, dims = _passes(task, layout, share, machine), layout.dims
    sent = [(message, seconds_of(message, dims, machine)) for message in collectives(task, layout, share)]
    count = given("micro_batches", layout.micro_batches)
    during = {when: _during(sent, when) for when in ("forward", "backward", "again")}
    if task.job.tensor_parallel.asynchronous and dims.tp > 1:
        beside = count * given("blocks on this rank", share.all_blocks) * _products(task, layout, machine)
        during["forward"] = _overlapped(sent, "forward", beside, dims.tp)
        during["backward"] = _overlapped(sent, "backward", 2 * beside, dims.tp)
    blocking = total(list(during.values())).called("collectives", "s")
    whole = PassTimes(
        bare.forward + during["forward"] / count,
        bare.to_input + (during["backward"] + during["again"]) / count,
        bare.to_weights,
    )
    step = StepTime(
        compute=(count * bare.total).called("compute", "s"),
        collectives=blocking,
        sharding=_sharding(layout, sent, whole),
        sends=_NOTHING,
        bubble=_NOTHING,
        update=_update(task, layout, share, machine, _during(sent, "update")),
    )
    return step, whole


def _during(sent: list[tuple[Message, Figure]], when: str) -> Figure:
    return total([spent for message, spent in sent if message.when == when])


def _overlapped(sent: list[tuple[Message, Figure]], when: str, products: Figure, tp: int) -> Figure:
    """Async TP cuts gathers and scatters into a piece per rank; the first, and what outlasts the products, counts."""
    pieces = given("pieces", tp)
    along = [
        spent
        for message, spent in sent
        if message.when == when and message.axis == "tp" and message.kind in {"all_gather", "reduce_scatter"}
    ]
    split = total(along)
    exposed = split / pieces + largest(split - split / pieces - products, _NOTHING)
    return (_during(sent, when) - split + exposed).called(f"collectives that products do not hide, {when}", "s")


def _products(task: Task, layout: Layout, machine: Machine) -> Figure:
    rate = machine.matmul(task.job.precision.compute)
    return (block_work(task, layout).products / rate).called("a block's matrix products", "s")


def _passes(task: Task, layout: Layout, share: Share, machine: Machine) -> PassTimes:
    """Seconds of passes without collectives."""
    compute = task.job.precision.compute
    rate, attention_rate, memory = machine.matmul(compute), machine.attention(compute), machine.memory()
    block, blocks = block_work(task, layout), given("blocks on this rank", share.all_blocks)
    products = _products(task, layout, machine)
    others = (block.moved / memory).called("a block's other operators", "s")
    attention = (block.attention / attention_rate).called("a block's attention", "s")
    forward = products + attention + others
    again = {"full": forward, "selective": others, "budget": others}.get(layout.checkpointing, _NOTHING)
    to_input = products + block.attention_backward / attention_rate + 2 * others + again
    to_weights = _NOTHING if task.shape.frozen else products
    passes = PassTimes(blocks * forward, blocks * to_input, blocks * to_weights)
    if share.last:
        end = end_work(task, layout)
        projected, moved = end.products / rate, end.moved / memory
        passes = PassTimes(
            passes.forward + projected + moved / 2,
            passes.to_input + projected + moved / 2,
            passes.to_weights if task.shape.frozen else passes.to_weights + projected,
        )
    return PassTimes(
        passes.forward.called("forward pass", "s"),
        passes.to_input.called("backward pass to inputs", "s"),
        passes.to_weights.called("backward pass to weights", "s"),
    )


def _sharding(layout: Layout, sent: list[tuple[Message, Figure]], passes: PassTimes) -> Figure:
    """Seconds by which FSDP's transfers outlast the passes, plus the first and last transfer, which nothing hides."""
    gathers, scatters = _during(sent, "gather"), _during(sent, "scatter")
    if not gathers.value and not scatters.value:
        return _NOTHING
    each_time = layout.dims.pp == 1
    count = given("micro_batches", layout.micro_batches)
    forward, backward = passes.forward, passes.to_input + passes.to_weights
    ahead, back = gathers, scatters
    if layout.method == "zero3" and each_time:
        ahead, back = gathers / 2, scatters + gathers / 2
        forward = count * forward
    if layout.method in {"zero2", "zero3"} and each_time:
        backward = count * backward
    ends = total([spent / message.count for message, spent in sent if message.when in {"gather", "scatter"}])
    left = largest(ahead - forward, _NOTHING) + largest(back - backward, _NOTHING) + ends
    return left.called("sharding that nothing hides", "s")


def _update(task: Task, layout: Layout, share: Share, machine: Machine, gathered: Figure) -> Figure:
    """Seconds to read and write parameters and states and read gradients, and again for norm and clipping."""
    elements = share.all_blocks * unit_elements(task, layout) + root_elements(task, layout, share)
    kept = sharded(task, layout, share.all_blocks, elements)
    if task.shape.frozen:
        kept = sharded(task, layout, 0, share.all_blocks * task.shape.adapters)
    touched = given("reads and writes of an update", 2 + 3 + 2 * task.state_elements) * MASTER_BYTES * kept
    if not matrices_of(task):
        return (touched / machine.memory()).called("update", "s")
    touched = touched - 2 * spared_second_moments(task, layout, share)
    return total([touched / machine.memory(), _muon(task, share, machine), gathered]).called("update", "s")


def _muon(task: Task, share: Share, machine: Machine) -> Figure:
    """Seconds to orthogonalise whole matrices."""
    block = orthogonalising(task) / machine.matmul("bfloat16") + moved_by_muon(task) / machine.memory()
    return (given("blocks on this rank", share.all_blocks) * block).called("matrices that Muon orthogonalises", "s")


def mfu(task: Task, step: Figure, machine: Machine, ranks: int) -> Figure:
    """Model FLOPs utilisation: useful operations over what the machines could do in that time."""
    compute = task.job.precision.compute
    tokens = given("global_batch", task.job.batch.global_batch, "sequences") * task.sequence
    useful = flops_per_token(task.shape, task.sequence) * tokens.called("tokens per step", "tokens")
    peak = given(f"{compute} rate", machine.rates.matmul(compute), "FLOP/s", machine.rates.source)
    return (useful / (step * given("ranks", ranks) * peak)).called("MFU", "", "Chowdhery et al. 2022, appendix B")
