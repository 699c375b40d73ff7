"""Poisson sampling: each step takes each sequence with the same chance, whatever else it takes.

That is what accountants assume. A shuffle, in which each sequence comes once in an epoch, is not the same: the bounds
do not hold for it.
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
    """Sequences by step: how many differs from step to step.

    Args:
        sequences: the data.
        global_batch: expected number of a step.
        micro_batch: what a rank's share is filled up to a multiple of, with rows that do not count.
        secret: the world's; who knows it knows who was sampled.
        tag: of the mechanism, see ``Budget``.

    Raises:
        DataError: if there are fewer sequences than one step expects.
    """

    def __init__(self, sequences: Sequences, global_batch: int, micro_batch: int, secret: Secret, tag: str) -> None:
        self.sequences, self.global_batch, self.micro_batch = sequences, global_batch, micro_batch
        self._secret, self._tag = secret, tag
        self.sample_rate = rate(sequences, global_batch)

    @property
    def digest(self) -> str:
        """Of sequences and mechanism; not of the secret, which is another after each start."""
        return f"{self.sequences.digest}/poisson/{self._tag}/{self.global_batch}"

    def sampled(self, step: int) -> Ints:
        """Indices of a step's sequences, in no order that means anything: int64 [n], n differing by step."""
        generator = self._secret.generator(f"sample/{step}")
        total = len(self.sequences)
        count = generator.binomial(total, self.sample_rate)
        return generator.choice(total, count, replace=False, shuffle=True).astype(np.int64)

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """Some of a step's sequences."""
        return self.sequences.rows(self.sampled(step)[start:stop])

    def epoch(self, step: int) -> int:
        """How often a sequence was seen, on average."""
        return step * self.global_batch // len(self.sequences)

    def bookmarks(self, step: int) -> None:
        """None are needed: any sequence is found by its number."""

    def recall(self, step: int, bookmarks: Ints) -> None:
        """Nothing to recall."""


def rate(sequences: Sequences, global_batch: int) -> float:
    """Chance of a sequence to be in a step.

    Raises:
        DataError: if there are fewer sequences than one step expects.
    """
    if len(sequences) < global_batch:
        raise DataError(
            f"{sequences.name}: {len(sequences)} sequences are fewer than batch.global_batch = {global_batch}: "
            "set batch.global_batch or batch.sequence lower, or give more data"
        )
    return global_batch / len(sequences)


@dataclass(frozen=True)
class PoissonStep(Step):
    """One step's sequences, dealt evenly to ranks whatever their number is."""

    source: PoissonSource

    def counted_share(self, rank: int, counts: Sequence[int]) -> Batch:
        """A rank's sequences, then rows that do not count: every rank has as many rows, a multiple of a micro-batch."""
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
    """Steps of Poisson samples one after the other."""

    source: PoissonSource

    def __init__(self, source: PoissonSource) -> None:
        super().__init__(source)
        self.source = source

    def step(self, number: int) -> PoissonStep:
        """Any step."""
        return PoissonStep(number, self.source)
