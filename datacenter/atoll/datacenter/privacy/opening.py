"""From a job file to Poisson batches and their budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.datacenter.data.batches import Shuffled
from atoll.datacenter.errors import DataError
from atoll.datacenter.privacy.budget import Budget
from atoll.datacenter.privacy.sampling import PoissonBatches, PoissonSource, rate

if TYPE_CHECKING:
    from atoll.datacenter.data.batches import Batches
    from atoll.datacenter.job.privacy import PrivacySection
    from atoll.datacenter.job.training import BatchSection
    from atoll.datacenter.privacy.secret import Secret


def open_private(
    batches: Batches, section: PrivacySection, batch: BatchSection, steps: int, secret: Secret
) -> tuple[PoissonBatches, Budget]:
    """The same sequences, sampled as the accountant assumes.

    Args:
        batches: as without privacy.
        section: ``[privacy]``.
        batch: ``[batch]``; ``global_batch`` is what a step expects.
        steps: of the whole job.
        secret: the world's.

    Raises:
        DataError: if the source streams: then nobody knows how many sequences there are.
        LayoutError: if no noise keeps the job within its epsilon.
    """
    if not isinstance(batches.source, Shuffled):
        raise DataError(
            "[privacy] samples each sequence with the same chance, so it has to know them all: make a token file of "
            'the text with "atoll silo tokens", and set data.source = "tokens"'
        )
    sequences = batches.source.sequences
    budget = Budget.of(section, rate(sequences, batch.global_batch), steps)
    source = PoissonSource(sequences, batch.global_batch, batch.micro_batch, secret, budget.tag)
    return PoissonBatches(source), budget
