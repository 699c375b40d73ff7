"""Open the Poisson batches of a job file, and the budget that they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atoll.datacenter.data.batches import Shuffled
from atoll.datacenter.errors import DataError
from atoll.datacenter.privacy.budget import Budget
from atoll.datacenter.privacy.passes import Mechanism
from atoll.datacenter.privacy.sampling import PoissonBatches, PoissonSource, rate
from atoll.datacenter.privacy.secret import Secret

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from atoll.datacenter.data.batches import Batches
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import World
    from atoll.datacenter.privacy.step_ledger import StepLedger


def open_private(job: SiloJob, batches: Batches, device: torch.device) -> tuple[Batches, Mechanism | None]:
    """Return batches sampled as the accountant assumes, and the mechanism of the noise; collective.

    Args:
        job: the job; without ``[privacy]`` nothing changes.
        batches: the batches without privacy.
        device: device of this rank.

    Raises:
        DataError: if the source streams, because the number of sequences is then unknown.
        LayoutError: if no noise keeps the job within its epsilon.
    """
    if job.privacy is None:
        return batches, None
    if not isinstance(batches.source, Shuffled):
        raise DataError(
            "[privacy] samples each sequence with the same probability, so it must know all of them: create a token "
            'file of the text with "atoll silo tokens", and set data.source = "tokens"'
        )
    sequences, expected = batches.source.sequences, job.batch.global_batch
    budget = Budget.of(job.privacy, rate(sequences, expected), job.job.steps)
    mechanism = Mechanism(budget, Secret.draw(device), sequences.rows(np.zeros(1, np.int64)).labels.size)
    source = PoissonSource(sequences, expected, job.batch.micro_batch, mechanism.secret, mechanism.budget.tag)
    return PoissonBatches(source), mechanism


def open_ledger(job: SiloJob, mechanism: Mechanism | None, world: World, folder: Path) -> StepLedger | None:
    """Return the ledger that a job outside a federation is charged to; None on other ranks, and without ``[privacy]``.

    Raises:
        UsageError: if the job's limit or delta are out of range.
    """
    if mechanism is None or not world.is_first:
        return None
    from atoll.datacenter.privacy.step_ledger import StepLedger  # noqa: PLC0415  # other jobs train without the client

    return StepLedger(job, mechanism.budget, folder)
