"""Loss on held-out data while a job trains. An evaluation changes nothing that training depends on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from atoll.datacenter.data import open_held_out
from atoll.datacenter.metrics import Evaluation
from atoll.datacenter.models.llama_spec import IGNORED_LABEL
from atoll.datacenter.parallel.context import cut_batches
from atoll.datacenter.parallel.float8 import scale_weights

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.data import HeldOut
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.parallel.passes import MicroBatch, Passes


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a model in any layout. Collective.

    Attributes:
        passes: passes of the job.
        held_out: sequences to evaluate on.
        every_steps: steps between evaluations.
    """

    passes: Passes
    held_out: HeldOut
    every_steps: int
    job: SiloJob
    meshes: Meshes
    device: torch.device

    @classmethod
    def of(cls, job: SiloJob, folder: Path, passes: Passes, meshes: Meshes, device: torch.device) -> Evaluator | None:
        """Return the evaluator of a job; None without ``[evaluation]``. Raises as ``open_held_out``."""
        held_out = open_held_out(job, folder)
        if held_out is None or job.evaluation is None:
            return None
        return cls(passes, held_out, job.evaluation.every_steps, job, meshes, device)

    def is_due(self, made: int) -> bool:
        """Return whether the model is evaluated after this many steps since the job began."""
        return made % self.every_steps == 0 or made == self.job.job.steps

    def __call__(self, step: int) -> Evaluation:
        """Evaluate the current model.

        Args:
            step: optimiser steps since the job began.
        """
        began = time.perf_counter()
        figures = torch.zeros(2, dtype=torch.float64, device=self.device)
        if self.job.precision.float8_gather:
            scale_weights(self.passes.parts)
        with _undisturbed(self.passes.parts, self.device):
            for loss, tokens in self._batches():
                figures += torch.stack((loss.double(), tokens.double()))
        dist.all_reduce(figures, group=self.meshes.loss.get_group())
        loss, tokens = figures
        if self.meshes.dims.pp > 1:
            dist.all_reduce(loss, group=self.meshes.dense["pp"].get_group())
        total, counted = float(loss), int(tokens)
        return Evaluation(step, total / max(1, counted), counted, time.perf_counter() - began)

    def _batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the summed loss and the counted tokens of this rank's share of each batch."""
        ranks = self.meshes.data["batch"]
        for share in self.held_out.shares(ranks.get_local_rank(), self.meshes.dims.batch):
            whole = list(share.to(self.device).micro_batches(self.job.batch.micro_batch))
            batches: Sequence[MicroBatch] = cut_batches(whole, self.job, self.meshes)
            counted = sum((batch.labels != IGNORED_LABEL).sum() for batch in batches)
            yield self.passes.evaluate(batches), torch.as_tensor(counted, device=self.device)


@contextmanager
def _undisturbed(parts: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Set evaluation mode without gradients; afterwards restore modes, random generators and shards."""
    modules = [module for part in parts for module in part.modules()]
    training = [module.training for module in modules]
    gpus = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(gpus):
        try:
            for part in parts:
                part.eval()
            yield
        finally:
            for module, was in zip(modules, training, strict=True):
                module.training = was
                if isinstance(module, FSDPModule):
                    module.reshard()  # without a backward pass gathered parameters stay, and would miss updates
