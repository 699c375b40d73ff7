"""Memory that one rank needs, by part, at the fullest moment of a step.

Moments, in order; blocks are named in the order of the backward pass:

==============  =======================================================================================
``output``      the output matrix is gathered
``loss``        the gradient of the loss is computed
``projection``  the backward pass of the output projection
``backward``    that of the first block, whose activations are still whole; the output's gradients travel
``second``      that of the second block; the first block's gradients travel
``scatter``     the first block's gradients exist, and are scattered
``gradients``   those of the last block and of the embedding are scattered
``update``      the optimiser's
==============  =======================================================================================

The parts are those of Rajbhandari et al. 2020, section 3, FSDP's buffers (Zhao et al. 2023, section 3.4), and what the
allocator has reserved beside them (``pools``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from atoll.datacenter.plan.activations import Activations, activations_of
from atoll.datacenter.plan.bubble import held
from atoll.datacenter.plan.buffers import buffers_of
from atoll.datacenter.plan.layout import MASTER_BYTES
from atoll.datacenter.plan.muon import spared_second_moments, whole_matrix
from atoll.datacenter.plan.pools import pools_of
from atoll.datacenter.plan.sharding import dealt_elements, root_elements, unit_elements
from atoll.datacenter.plan.states import states_of
from atoll.datacenter.sizing.formula import Figure, given, total

if TYPE_CHECKING:
    from atoll.datacenter.plan.layout import Layout, Task
    from atoll.datacenter.plan.stages import Share
    from atoll.datacenter.plan.states import States

CONTEXT_BYTES = 1.5 * 2**30
"""CUDA context, library workspaces and NCCL's channels: assumed, not measured; about what is seen on H100s."""
NOTHING = Figure(0.0)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one rank at one moment.

    Attributes:
        parameters: this rank's shard.
        gradients: shards, or whole gradients where they wait for the last micro-batch.
        states: states of the optimiser.
        activations: of micro-batches in flight, and of the current block.
        logits: logits and the temporaries of the loss.
        buffers: gathered parameters, and gradients being sent.
        idle: reserved and empty at this moment: of streams of collectives, and segments that are too small.
    """

    parameters: Figure
    gradients: Figure
    states: Figure
    activations: Figure
    logits: Figure
    buffers: Figure
    idle: Figure = NOTHING

    def parts(self) -> dict[str, Figure]:
        """Return the parts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def with_idle(self, idle: Figure) -> Memory:
        """Return a copy with these idle bytes."""
        return Memory(self.parameters, self.gradients, self.states, self.activations, self.logits, self.buffers, idle)

    @property
    def allocated(self) -> float:
        """Bytes of tensors, without a formula."""
        kept = self.parameters.value + self.gradients.value + self.states.value
        return kept + self.activations.value + self.logits.value + self.buffers.value

    @property
    def size(self) -> float:
        """Bytes that the allocator has reserved, without a formula."""
        return self.allocated + self.idle.value

    @property
    def total(self) -> Figure:
        """Bytes that the allocator has reserved."""
        return total(list(self.parts().values())).called("memory", "bytes")


@dataclass(frozen=True, slots=True)
class Peak:
    """The fullest moment of a step.

    Attributes:
        moment: name of the moment.
        memory: memory at that moment.
        rank: the rank along ``pp`` whose memory this is.
    """

    moment: str
    memory: Memory
    rank: int


def peak(task: Task, layout: Layout, share: Share) -> Peak:
    """Return the moment of a rank's step at which most is reserved, once the optimiser has states."""
    moments, pools = _moments(task, layout, share), pools_of(task, layout, share)
    outgrown = activations_of(task, layout).outgrown if share.last and layout.dims.pp == 1 else NOTHING

    def reserved(name: str) -> float:
        memory = moments[name]
        empty = pools.idle_bytes(name, with_shards=memory.gradients is pools.shards)
        return memory.allocated + empty + (outgrown.value if name == "loss" else 0.0)

    name = max(moments, key=reserved)
    idle = pools.idle(name, with_shards=moments[name].gradients is pools.shards)
    if name == "loss" and outgrown.value:
        idle = (idle + outgrown).called("reserved and empty", "bytes")
    return Peak(name, moments[name].with_idle(idle), share.rank)


def peak_of_passes(task: Task, layout: Layout, share: Share) -> Peak:
    """Return the moment before the optimiser's update at which tensors take most, without idle bytes."""
    moments = _moments(task, layout, share)
    name = max(moments.keys() - {"update"}, key=lambda moment: moments[moment].allocated)
    return Peak(name, moments[name], share.rank)


def least(task: Task, layout: Layout, share: Share) -> float:
    """Return the bytes of parameters and states on the device: a lower bound that is fast to compute."""
    return 0.0 if task.job.data_parallel.cpu_offload else kept(task, layout, share)


def kept(task: Task, layout: Layout, share: Share) -> float:
    """Return the bytes of a rank's parameters and states, on the device or on the host."""
    unit, root = unit_elements(task, layout).value, root_elements(task, layout, share).value
    dealt = share.all_blocks * dealt_elements(task, layout).value
    elements = (share.all_blocks * unit + root - dealt) / layout.shards + dealt / layout.dims.efsdp
    frozen = task.shape.frozen
    held = elements * MASTER_BYTES * (1 if frozen else 1 + task.state_elements)
    return held if frozen else held - spared_second_moments(task, layout, share).value


def _moments(task: Task, layout: Layout, share: Share) -> dict[str, Memory]:
    """Return the memory of tensors at each moment, without idle bytes."""
    acts, of, buffers = activations_of(task, layout), states_of(task, layout, share), buffers_of(task, layout, share)
    before = _gradients_between(task, layout, share, of)
    received = _received(layout, share, acts)
    blocks = _in_flight(layout, share, acts) + received
    kept = (blocks + _at_end(layout, share, acts)).called("activations", "bytes")
    logits = acts.logits if share.last and layout.dims.pp > 1 else NOTHING  # a pipeline keeps them to the step's end
    begun = (logits if layout.dims.pp > 1 else acts.saved) + acts.loss
    loss = begun.called("logits and loss", "bytes") if share.last else NOTHING
    working = (kept + acts.working).called("activations", "bytes")
    fewer = (kept - acts.block).called("activations of the blocks before", "bytes")
    finished = before if layout.micro_batches > 1 else of.gradients
    parameters, states = of.parameters, of.states
    found = {
        "loss": Memory(parameters, before, states, kept, loss, buffers.loss),
        "backward": Memory(parameters, before, states, working, logits, buffers.backward),
        "scatter": Memory(parameters, before, states, fewer + acts.passed, logits, buffers.scatter),
        "gradients": Memory(parameters, finished, states, acts.passed + received, logits, buffers.gradients),
        "update": Memory(parameters, of.gradients, states, received, logits, _update(task, of)),
    }
    if layout.dims.pp == 1:  # a pipeline holds more at other moments
        first = before if layout.method == "zero3" else NOTHING  # other methods gather in the first micro-batch only
        found["output"] = Memory(parameters, first, states, blocks, NOTHING, buffers.output)
        found["projection"] = Memory(parameters, before, states, kept, acts.projection, buffers.projection)
        one_less = (fewer + acts.working).called("activations", "bytes")
        found["second"] = Memory(parameters, before, states, one_less, logits, buffers.second)
    return found


def _gradients_between(task: Task, layout: Layout, share: Share, of: States) -> Figure:
    """Gradients left by earlier micro-batches when the fullest one runs."""
    if layout.micro_batches == 1:
        return NOTHING
    if layout.dims.pp > 1 and _stage_by_stage(layout):
        return _whole(task, layout, _trained_of_one_stage(task, layout, share))
    if layout.dims.pp > 1 or layout.method in {"ddp", "zero1"}:
        return _whole(task, layout, of.trained)
    return of.gradients


def _stage_by_stage(layout: Layout) -> bool:
    """Whether a rank ends all backward passes of one stage, and scatters its gradients, before those of the next."""
    few = layout.micro_batches <= layout.dims.pp
    return layout.schedule == "looped_bfs" or (layout.schedule == "interleaved" and few)


def _trained_of_one_stage(task: Task, layout: Layout, share: Share) -> Figure:
    most = given("blocks of the largest stage", max(share.blocks))
    if task.shape.frozen:
        return most * task.shape.adapters
    return (most * unit_elements(task, layout) + root_elements(task, layout, share)).called(
        "parameters of one stage on one rank", "elements"
    )


def _whole(task: Task, layout: Layout, trained: Figure) -> Figure:
    """Unsharded gradients that wait for the last micro-batch, in the format in which they are sent."""
    width = MASTER_BYTES if layout.plain_ddp else task.reduce_width
    return (width * trained).called("whole gradients", "bytes")


def _in_flight(layout: Layout, share: Share, acts: Activations) -> Figure:
    """Activations of blocks, of all micro-batches whose backward pass has not run yet."""
    if layout.dims.pp == 1:
        return given("blocks", share.all_blocks) * acts.block
    each = given("blocks of a stage", share.all_blocks / len(share.blocks)) * acts.block + acts.boundary
    return _stage_passes(layout, share) * each


def _received(layout: Layout, share: Share, acts: Activations) -> Figure:
    """Buffers for what other stages send: PyTorch makes one for each micro-batch and message, and keeps them.

    The input of a micro-batch in flight is such a buffer too; that one is counted with its activations.
    """
    if layout.dims.pp == 1:
        return NOTHING
    stages = len(share.blocks)
    forward, backward = stages - share.first, stages - share.last
    in_flight = _stage_passes(layout, share).value * forward / stages
    empty = given("buffers that hold no input", layout.micro_batches * (forward + backward) - in_flight)
    return (empty * acts.boundary).called("buffers for what is received", "bytes")


def _at_end(layout: Layout, share: Share, acts: Activations) -> Figure:
    """Activations of the last norm and the output projection, of the same micro-batches."""
    if not share.last:
        return NOTHING
    return acts.last if layout.dims.pp == 1 else acts.last * _stage_passes(layout, share) / len(share.blocks)


def _stage_passes(layout: Layout, share: Share) -> Figure:
    passes = held(layout.schedule, share.rank, layout.dims.pp, layout.stages_per_rank, layout.micro_batches)
    return given("stage passes in flight", passes)


def _update(task: Task, of: States) -> Figure:
    """AdamW over many tensors at once holds one more float32 per parameter (square roots of second moments).

    Muon's matrices are updated one by one.
    """
    if task.job.data_parallel.cpu_offload or task.job.optimiser.name == "sgd":
        return NOTHING
    temporaries = given("bytes of a float32", MASTER_BYTES) * of.learning
    if of.spared.value:
        temporaries = whole_matrix(task) + temporaries - of.spared
    return temporaries.called("optimiser's temporaries", "bytes")
