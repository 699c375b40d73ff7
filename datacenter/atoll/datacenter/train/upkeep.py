"""Work between steps: compare replicas, and distribute sequences by measured speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.datacenter.compression import hook_of
from atoll.datacenter.parallel.passes import PlainPasses
from atoll.datacenter.parallel.replicas import check_replicas, is_whole_along, named_values
from atoll.datacenter.parallel.uneven import Balance

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    import torch.distributed as dist
    from torch import Tensor, nn

    from atoll.datacenter.checkpoint.state import Extra
    from atoll.datacenter.data import Loader
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.train.step import Step


@dataclass(frozen=True)
class Copies:
    """Parameters and buffers of which each rank of a group holds a copy."""

    named: Sequence[tuple[str, Tensor]]
    group: dist.ProcessGroup


@dataclass
class Upkeep:
    """The work that one rank does between steps.

    Attributes:
        copies: what to compare over which ranks, if the job asks for it.
        every_steps: steps between comparisons.
        balance: distributes sequences if shares are uneven.
        loader: receives the shares.
    """

    copies: Sequence[Copies]
    every_steps: int
    balance: Balance | None
    loader: Loader
    device: torch.device

    @classmethod
    def of(cls, job: SiloJob, step: Step, meshes: Meshes, loader: Loader, device: torch.device) -> Upkeep:
        """Set up what the job asks for; only ``after_step`` makes collective calls."""
        every, passes = job.data_parallel.check_replicas_every, step.passes
        balance = None
        if isinstance(passes, PlainPasses) and passes.watch is not None:
            balance = Balance(job.batch.global_batch, meshes.loss.get_group(), passes.watch)
        return cls(_copies(passes.parts, job, meshes) if every else (), every, balance, loader, device)

    def after_step(self, made: int) -> None:
        """Do the work that is due; collective.

        Args:
            made: number of steps since the job began.

        Raises:
            TrainingError: if replicas differ.
        """
        if self.every_steps and made % self.every_steps == 0:
            for copies in self.copies:
                check_replicas(copies.named, copies.group, made)
        if self.balance is not None and (counts := self.balance.after_step(self.device)) is not None:
            self.loader.reshare(counts)


def _copies(parts: Sequence[nn.Module], job: SiloJob, meshes: Meshes) -> list[Copies]:
    """Return what replicas hold, and what the ranks of a ``tp`` group hold whole, such as norms."""
    named = named_values(parts)
    found: list[Copies] = []

    def add(group: dist.ProcessGroup, *sharding_axes: str) -> None:
        found.append(Copies([pair for pair in named if is_whole_along(pair[1], sharding_axes)], group))

    if job.data_parallel.method == "ddp":
        add(meshes.loss.get_group(), "ep", "efsdp")
    elif meshes.dims.dp_replicate > 1:
        add(meshes.dense["dp_replicate"].get_group(), "dp_replicate")
    if meshes.dims.tp > 1:
        add(meshes.data["tp"].get_group(), "tp")
    return found


def hook_states(step: Step) -> dict[str, Extra]:
    """Return the state of a gradient hook on this rank, for checkpoints; empty without one."""
    hook = hook_of(step.passes.parts[0])
    return {} if hook is None else {"hook": hook}
