"""A layout with all its predicted values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from atoll.datacenter.plan.memory import CONTEXT_BYTES, Peak, peak
from atoll.datacenter.plan.message import Message
from atoll.datacenter.plan.stages import shares
from atoll.datacenter.plan.step_time import StepTime, group_of, mfu, step_time
from atoll.datacenter.plan.traffic import messages
from atoll.datacenter.sizing.flops import flops_per_token
from atoll.datacenter.sizing.formula import Figure, given

if TYPE_CHECKING:
    from atoll.datacenter.plan.layout import Layout, Task
    from atoll.datacenter.plan.stages import Share
    from atoll.datacenter.plan.step_time import Machine


@dataclass(frozen=True)
class Prediction:
    """Predictions of one layout.

    Attributes:
        task: the job to plan.
        layout: one way to divide it.
        machine: the machine to run on.
        peak: the fullest rank at its fullest moment.
        time: time of a step.
    """

    task: Task
    layout: Layout
    machine: Machine
    peak: Peak
    time: StepTime

    @property
    def memory(self) -> Figure:
        """Memory of the fullest rank, including the device's own context."""
        context = given("context", CONTEXT_BYTES, "bytes", "assumed: CUDA, libraries, NCCL")
        return (self.peak.memory.total + context).called("memory of the fullest rank", "bytes")

    @property
    def fits(self) -> bool:
        """Whether the memory fits the device, with a margin for fragmentation."""
        return self.memory.value <= self.machine.usable_bytes

    @property
    def step(self) -> Figure:
        """Seconds of a step."""
        return self.time.total

    @property
    def tokens_per_s(self) -> Figure:
        """Tokens per second of one rank."""
        tokens = given("global_batch", self.task.job.batch.global_batch, "sequences") * self.task.sequence
        ranks = given("ranks", self.layout.dims.world_size)
        return (tokens / (self.step * ranks)).called("tokens per second and rank", "tokens/s")

    @property
    def mfu(self) -> Figure:
        """Model FLOPs utilisation, from 0 to 1."""
        return mfu(self.task, self.step, self.machine, self.layout.dims.world_size)

    def messages(self) -> list[Message]:
        """Collectives of the fullest rank in one step."""
        return messages(self.task, self.layout, shares(self.layout, self.task.job.model.layers)[self.peak.rank])

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction for JSON."""
        parts = {field.name: getattr(self.time, field.name).value for field in fields(self.time)}
        return {
            "layout": self.layout.as_dict(),
            "fits": self.fits,
            "memory_bytes": round(self.memory.value),
            "memory_parts": {name: round(part.value) for name, part in self.peak.memory.parts().items()},
            "fullest": {"moment": self.peak.moment, "pp_rank": self.peak.rank},
            "step_s": self.step.value,
            "step_parts_s": parts,
            "tokens_per_s_per_rank": self.tokens_per_s.value,
            "mfu": self.mfu.value,
            "flops_per_token": flops_per_token(self.task.shape, self.task.sequence).value,
            "collectives": [self._message(message) for message in self.messages()],
        }

    def _message(self, message: Message) -> dict[str, Any]:
        group = group_of(message.axis, self.layout.dims, self.machine.rates.ranks_per_node)
        return {
            "what": message.what,
            "kind": message.kind,
            "axis": message.axis,
            "ranks": group.ranks,
            "nodes": group.nodes,
            "calls": round(message.count.value),
            "bytes": round(message.total.value),
        }


def predict_layout(task: Task, layout: Layout, machine: Machine, memory: Peak | None = None) -> Prediction:
    """Predict one layout; ``memory`` is its ``fullest``, if that is known."""
    time = step_time(task, layout, _shares(task, layout), machine)
    return Prediction(task, layout, machine, memory or fullest(task, layout), time)


def fullest(task: Task, layout: Layout) -> Peak:
    """Return the fullest rank along ``pp`` at its fullest moment; of similar ranks the first has most in flight."""
    unlike: dict[tuple[object, ...], Share] = {}
    for share in _shares(task, layout):
        unlike.setdefault((share.blocks, share.first, share.last), share)
    return max((peak(task, layout, share) for share in unlike.values()), key=lambda one: one.memory.size)


def _shares(task: Task, layout: Layout) -> tuple[Share, ...]:
    return shares(layout, task.job.model.layers)
