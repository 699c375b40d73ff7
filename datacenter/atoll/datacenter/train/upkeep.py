"""What replicas do between steps: look whether they are equal, and deal sequences by speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.datacenter.compression import hook_of
from atoll.datacenter.parallel.replicas import check_replicas
from atoll.datacenter.parallel.uneven import Balance
from atoll.datacenter.train.passes import PlainPasses

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
    """Of one rank.

    Attributes:
        replica: the module, if the job asks to compare it.
        every_steps: between comparisons.
        balance: if shares are uneven.
        loader: gets the shares.
    """

    replica: nn.Module | None
    every_steps: int
    balance: Balance | None
    loader: Loader
    group: dist.ProcessGroup
    device: torch.device

    @classmethod
    def of(cls, job: SiloJob, step: Step, meshes: Meshes, loader: Loader, device: torch.device) -> Upkeep:
        """What the job asks for; collective calls come from ``after_step`` alone."""
        every, group = job.data_parallel.check_replicas_every, meshes.loss.get_group()
        passes = step.passes
        balance = None
        if isinstance(passes, PlainPasses) and passes.watch is not None:
            balance = Balance(job.batch.global_batch, group, passes.watch)
        return cls(passes.parts[0] if every else None, every, balance, loader, group, device)

    def after_step(self, made: int) -> None:
        """Collective where something is due.

        Args:
            made: steps since the job began.

        Raises:
            TrainingError: if replicas differ.
        """
        if self.replica is not None and made % self.every_steps == 0:
            check_replicas(self.replica, self.group, made)
        if self.balance is not None and (counts := self.balance.after_step(self.device)) is not None:
            self.loader.reshare(counts)


def hook_states(step: Step) -> dict[str, Extra]:
    """What a gradient hook keeps on this rank, for checkpoints; empty without one."""
    hook = hook_of(step.passes.parts[0])
    return {} if hook is None else {"hook": hook}
