"""Work between steps: compare replicas, and distribute sequences by measured speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.datacenter.compression import hook_of
from atoll.datacenter.parallel.passes import PlainPasses
from atoll.datacenter.parallel.replicas import check_replicas
from atoll.datacenter.parallel.uneven import Balance

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

    from atoll.datacenter.checkpoint.state import Extra
    from atoll.datacenter.data import Loader
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.train.step import Step


@dataclass
class Upkeep:
    """Work of one rank between steps.

    Attributes:
        replica: module to compare, if the job asks for it.
        every_steps: steps between comparisons.
        balance: distributes sequences if shares are uneven.
        loader: receives the shares.
    """

    replica: nn.Module | None
    every_steps: int
    balance: Balance | None
    loader: Loader
    group: dist.ProcessGroup
    device: torch.device

    @classmethod
    def of(cls, job: SiloJob, step: Step, meshes: Meshes, loader: Loader, device: torch.device) -> Upkeep:
        """Set up what the job asks for; only ``after_step`` makes collective calls."""
        every, group = job.data_parallel.check_replicas_every, meshes.loss.get_group()
        passes = step.passes
        balance = None
        if isinstance(passes, PlainPasses) and passes.watch is not None:
            balance = Balance(job.batch.global_batch, group, passes.watch)
        return cls(passes.parts[0] if every else None, every, balance, loader, group, device)

    def after_step(self, made: int) -> None:
        """Do what is due; collective.

        Args:
            made: number of steps since the job began.

        Raises:
            TrainingError: if replicas differ.
        """
        if self.replica is not None and made % self.every_steps == 0:
            check_replicas(self.replica, self.group, made)
        if self.balance is not None and (counts := self.balance.after_step(self.device)) is not None:
            self.loader.reshare(counts)


def hook_states(step: Step) -> dict[str, Extra]:
    """Return the state of a gradient hook on this rank, for checkpoints; empty without one."""
    hook = hook_of(step.passes.parts[0])
    return {} if hook is None else {"hook": hook}
