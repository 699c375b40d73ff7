"""Decline rounds of a model that does not fit in this silo's devices: a round would only fail in its first step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from atoll.datacenter.federation.lane import weights_device
from atoll.datacenter.machine.compute import device_memory_bytes
from atoll.datacenter.mesh.shards import local_shard
from atoll.datacenter.mesh.world import ranks_per_node
from atoll.datacenter.plan.layout import MASTER_BYTES, Task, layout_of, state_elements
from atoll.datacenter.plan.least_memory import fitting_layout, needed_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import World

_GIB = 2**30


@dataclass(frozen=True)
class MemoryCheck:
    """Compares a rank's memory with the least that its share of the model takes.

    Attributes:
        needed_bytes: parameters and optimiser states of the fullest rank; a step needs more.
        memory_bytes: memory of the device, or of the host where states are kept there.
        task: the job for the planner; None if the planner does not know its kind of model.
        ranks: ranks of the silo.
        ranks_per_node: ranks of this machine.
    """

    needed_bytes: float
    memory_bytes: int
    task: Task | None
    ranks: int
    ranks_per_node: int

    @classmethod
    def of(cls, job: SiloJob, parts: Sequence[nn.Module], world: World) -> MemoryCheck:
        """Return the check of a job, whose parts of the model this rank holds. Not collective."""
        per_node = ranks_per_node(world)
        task: Task | None = None
        if job.model.kind == "llama":
            task = Task.of(job, fused_norm=world.device.type == "cuda")
            needed = needed_bytes(task, layout_of(job, world.size))
        else:
            needed = float(held_bytes(job, parts))
        return cls(needed, device_memory_bytes(weights_device(job, world), per_node), task, world.size, per_node)

    def objection(self) -> str | None:
        """Return why this silo cannot run a round, with a remedy; None if no reason is known."""
        if self.needed_bytes <= self.memory_bytes:
            return None
        needed, memory = self.needed_bytes / _GIB, self.memory_bytes / _GIB
        return (
            f"the model does not fit this silo: parameters and optimiser states take {needed:.3g} GiB on a rank, which "
            f"has {memory:.3g} GiB; {self._remedy}"
        )

    @cached_property
    def _remedy(self) -> str:
        if self.task is not None:
            layout = fitting_layout(self.task, self.ranks, self.ranks_per_node, self.memory_bytes)
            if layout is not None:
                return f"this layout of its {self.ranks} ranks would fit: {layout.describe()}"
        return f"no layout of its {self.ranks} ranks is known to fit: start more ranks, or use devices with more memory"


def held_bytes(job: SiloJob, parts: Sequence[nn.Module]) -> int:
    """Return the bytes of this rank's parameters, and of the optimiser's states for the trained ones.

    With Muon this is a lower bound: it counts as if Muon trained every matrix.
    """
    total = 0
    for parameter in (one for part in parts for one in part.parameters()):
        local, _ = local_shard(parameter)
        muon = job.optimiser.name == "muon" and parameter.dim() == 2
        states = (state_elements(job) - muon) * MASTER_BYTES if parameter.requires_grad else 0
        total += local.numel() * (local.element_size() + states)
    return total
