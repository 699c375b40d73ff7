"""An edge client that trains the model of a silo's job file on one machine, with the torch adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atoll.client.torch import TorchParticipant
from atoll.datacenter.data import open_job_batches
from atoll.datacenter.job import load_job
from atoll.datacenter.job.federation import INNER_STEPS
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.optimiser import lr_at, make_optimiser

if TYPE_CHECKING:
    from atoll.client import Model, Task, Update
    from atoll.datacenter.data import Batch, Batches


class Steps:
    """Consecutive steps as batches; sets the learning rate of each.

    Attributes:
        wanted: number of batches in one pass.
    """

    def __init__(self, batches: Batches, begin: Callable[[int], None]) -> None:
        self.wanted = 0
        self._batches, self._begin = batches, begin

    def __iter__(self) -> Iterator[Batch]:
        for _ in islice(iter(int, 1), self.wanted):
            step = self._batches.next_step()
            self._begin(step.number)
            yield step.share(0, 1)


class Text(TorchParticipant):
    """Runs ``inner_steps`` steps per round. Optimiser states stay here and carry over from round to round.

    Args:
        job: a silo's job file; its layout is ignored.
    """

    def __init__(self, job: str) -> None:
        torch.set_num_threads(1)
        path = Path(job)
        self._job = load_job(path)
        self._spec = spec_of(self._job.model)
        module = self._spec.build()
        self._kept = make_optimiser(module.parameters(), self._job.optimiser)
        self._steps = Steps(open_job_batches(self._job, path.parent), self._set_rate)
        batch = self._job.batch
        super().__init__(
            module,
            self._steps,
            self._mean_loss,
            optimiser=lambda parameters, settings: self._kept,  # noqa: ARG005  # as the adapter calls it
            examples=self._job.federation.inner_steps * batch.global_batch * batch.sequence,
        )

    def fit(self, model: Model, task: Task) -> Update:
        """Train for one round."""
        self._steps.wanted = task.settings.integer(INNER_STEPS, self._job.federation.inner_steps)
        return super().fit(model, task)

    def batch_loss(self, batch: Batch) -> Tensor:
        """Return the mean over the counted tokens."""
        return self._mean_loss(self.module(batch.tokens), batch.labels)

    def batch_size(self, batch: Batch) -> int:
        """Return the number of counted tokens, which is the unit of weights here."""
        return batch.counted

    def _mean_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._spec.loss(logits, labels) / max(1, int((labels >= 0).sum()))

    def _set_rate(self, step: int) -> None:
        rate = lr_at(step, self._job.job.steps, self._job.optimiser.lr, self._job.schedule)
        for group in self._kept.param_groups:
            group["lr"] = rate
