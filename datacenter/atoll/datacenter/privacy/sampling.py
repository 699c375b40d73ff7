"""Poisson sampling: each step includes each sequence with the same probability, independently of all others.

Accountants assume this. Their bounds do not hold for a shuffle, in which each sequence comes once in an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.datacenter.data.batches import Batch, Batches, Step, even_counts
from atoll.datacenter.data.packing import IGNORED, PADDING, Ints, Rows, Sequences
from atoll.datacenter.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.datacenter.privacy.secret import Secret


class PoissonSource:
    """Sequences by step; their number differs from step to step.

    Args:
        sequences: the data.
        global_batch: expected number of sequences in a step.
        micro_batch: a rank's share is padded to a multiple of this, with rows that do not count.
        secret: secret of the world; it reveals which sequences were sampled.
        tag: identifies the mechanism, see ``Budget.tag``.

    Raises:
        DataError: if there are fewer sequences than one step expects.
    """

    def __init__(self, sequences: Sequences, global_batch: int, micro_batch: int, secret: Secret, tag: str) -> None:
        self.sequences, self.global_batch, self.micro_batch = sequences, global_batch, micro_batch
        self._secret, self._tag = secret, tag
        self.sample_rate = rate(sequences, global_batch)

    @property
    def digest(self) -> str:
        """Digest of sequences and mechanism; it leaves out the secret, which is new at every start."""
        return f"{self.sequences.digest}/poisson/{self._tag}/{self.global_batch}"

    def sampled(self, step: int) -> Ints:
        """Return the indices of a step's sequences, in arbitrary order: int64 [n]; n differs by step."""
        generator = self._secret.generator(f"sample/{step}")
        total = len(self.sequences)
        count = generator.binomial(total, self.sample_rate)
        return generator.choice(total, count, replace=False, shuffle=True).astype(np.int64)

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """Return some of a step's sequences."""
        return self.sequences.rows(self.sampled(step)[start:stop])

    def epoch(self, step: int) -> int:
        """Return how often a sequence has been seen, on average."""
        return step * self.global_batch // len(self.sequences)

    def bookmarks(self, step: int) -> None:
        """Return None: any sequence is found by its number."""

    def recall(self, step: int, bookmarks: Ints) -> None:
        """Do nothing: there are no bookmarks."""


def rate(sequences: Sequences, global_batch: int) -> float:
    """Return the probability that a sequence is in a step.

    Raises:
        DataError: if there are fewer sequences than one step expects.
    """
    if len(sequences) < global_batch:
        raise DataError(
            f"{sequences.name}: {len(sequences)} sequences are fewer than batch.global_batch = {global_batch}: "
            "set batch.global_batch or batch.sequence lower, or provide more data"
        )
    return global_batch / len(sequences)


@dataclass(frozen=True)
class PoissonStep(Step):
    """The sequences of one step, distributed evenly over any number of ranks."""

    source: PoissonSource

    def counted_share(self, rank: int, counts: Sequence[int]) -> Batch:
        """Return a rank's sequences, padded to the same multiple of a micro-batch on all ranks."""
        found = self.source.sampled(self.number)
        dealt = even_counts(found.size, len(counts))
        start = sum(dealt[:rank])
        rows = self.source.sequences.rows(found[start : start + dealt[rank]])
        micro = self.source.micro_batch
        wanted = max(1, -(-max(dealt) // micro)) * micro
        return Batch(_filled(rows.inputs, wanted, PADDING), _filled(rows.labels, wanted, IGNORED))


def _filled(part: NDArray[Any], rows: int, value: int) -> torch.Tensor:
    filler = np.full((rows - part.shape[0], *part.shape[1:]), value, part.dtype)
    return torch.from_numpy(np.concatenate((part, filler)))


class PoissonBatches(Batches):
    """Consecutive steps of Poisson samples."""

    source: PoissonSource

    def __init__(self, source: PoissonSource) -> None:
        super().__init__(source)
        self.source = source

    def step(self, number: int) -> PoissonStep:
        """Return any step."""
        return PoissonStep(number, self.source)
