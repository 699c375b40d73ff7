"""Steps: the rows of a step are a pure function of its number, and any rank of any world takes its share of them.

A rank's share is a range of consecutive rows of the step's ``global_batch``. So the same job on another number of ranks
sees the same rows in the same steps, and a resumed job continues as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from atoll.datacenter.data.packing import IGNORED, Ints, Rows, Sequences
from atoll.datacenter.data.permutation import Order
from atoll.datacenter.errors import DataError

State = dict[str, int | str]
"""Position in the data, as kept in a checkpoint; fits JSON."""
Agree = Callable[[torch.Tensor], torch.Tensor]
"""Takes each element's maximum over all data-parallel ranks: int64 [n] to int64 [n]."""


@dataclass(frozen=True)
class Batch:
    """Some rows of a step.

    Attributes:
        tokens: int64 [b, s]; for images float32 [b, ...].
        labels: int64 [b, s], -100 where there is nothing to predict; for images [b].
        documents: int64 [b, s]: the document of its row that a token belongs to, from 0; -1 for padding. Attention
            within documents is where these are equal. None for images.
        positions: int64 [b, s]: position of a token in its document within the row. None for images.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    documents: torch.Tensor | None = None
    positions: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.labels.shape[0]

    @property
    def counted(self) -> int:
        """Number of labels that the loss counts."""
        return int((self.labels != IGNORED).sum())

    def to(self, device: torch.device | str) -> Batch:
        """Copy to a device."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Copy to page-locked memory, from which a GPU copies while it computes."""
        return self._each(torch.Tensor.pin_memory)

    def micro_batches(self, rows: int) -> Iterator[Batch]:
        """Yield views of up to ``rows`` rows each, in order."""
        for start in range(0, len(self), rows):
            yield self._each(partial(torch.narrow, dim=0, start=start, length=min(rows, len(self) - start)))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        documents = None if self.documents is None else change(self.documents)
        positions = None if self.positions is None else change(self.positions)
        return Batch(change(self.tokens), change(self.labels), documents, positions)


class Source(Protocol):
    """Provides the rows of every step."""

    global_batch: int

    @property
    def digest(self) -> str:
        """Digest of everything that the rows depend on, including the seed and the size of a step."""
        ...

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """Return rows [start, stop) of a step's ``global_batch``: a pure function of its arguments."""
        ...

    def epoch(self, step: int) -> int:
        """Return how many times all data was seen before the step."""
        ...

    def bookmarks(self, step: int) -> Ints | None:
        """Return positions from which another process can cheaply continue; -1 where only other ranks know them.

        None if continuing is cheap without them.
        """
        ...

    def recall(self, step: int, bookmarks: Ints) -> None:
        """Use bookmarks. They do not change the rows, only the time to find them."""
        ...


class Shuffled:
    """Sequences in an order that differs in each epoch; epochs follow each other without a gap.

    Row r of step k is element k · global_batch + r of the endless sequence of epochs, so each sequence appears exactly
    once in an epoch; a step may begin in one epoch and end in the next.
    """

    def __init__(self, sequences: Sequences, global_batch: int, seed: int) -> None:
        if len(sequences) < global_batch:
            raise DataError(
                f"{sequences.name}: {len(sequences)} sequences are too few for one global batch of {global_batch}: "
                "set batch.global_batch or batch.sequence lower, or provide more data"
            )
        self.sequences, self.global_batch, self._seed = sequences, global_batch, seed
        self._order = Order(len(sequences), seed)

    @property
    def digest(self) -> str:
        """Digest of sequences, order and size of a step."""
        return f"{self.sequences.digest}/shuffled/{self._seed}/{self.global_batch}"

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """Return rows of a step."""
        before = step * self.global_batch
        return self.sequences.rows(self._order(before + start, before + stop))

    def epoch(self, step: int) -> int:
        """Return the number of whole epochs before the step."""
        return step * self.global_batch // len(self.sequences)

    def bookmarks(self, step: int) -> None:
        """Return None: any sequence is found by its number."""

    def recall(self, step: int, bookmarks: Ints) -> None:
        """Do nothing: there are no bookmarks."""


@dataclass(frozen=True)
class Step:
    """The ``global_batch`` rows of one step, read when a share is taken.

    Attributes:
        number: number of the step, from 0.
        source: provides the rows.
    """

    number: int
    source: Source

    def share(self, rank: int, world: int) -> Batch:
        """Return the rows of one of ``world`` data-parallel ranks. Shares differ by at most one row, larger first."""
        return self.counted_share(rank, even_counts(self.source.global_batch, world))

    def counted_share(self, rank: int, counts: Sequence[int]) -> Batch:
        """Return the rows of a rank where rank i gets ``counts[i]`` rows; a count may be 0.

        Raises:
            DataError: if the counts do not add up to the global batch.
        """
        if sum(counts) != self.source.global_batch or min(counts) < 0:
            raise DataError(f"shares of {list(counts)} rows are not a global batch of {self.source.global_batch}")
        return batch_of(self.source.rows(self.number, *_range(counts, rank)))


def batch_of(rows: Rows) -> Batch:
    """Return rows as tensors, which share their memory."""
    return Batch(
        torch.from_numpy(rows.inputs),
        torch.from_numpy(rows.labels),
        None if rows.documents is None else torch.from_numpy(rows.documents),
        None if rows.positions is None else torch.from_numpy(rows.positions),
    )


def share_of(global_batch: int, rank: int, world: int) -> tuple[int, int]:
    """Return the first row of a rank's even share, and the row after its last."""
    return _range(even_counts(global_batch, world), rank)


def _range(counts: Sequence[int], rank: int) -> tuple[int, int]:
    end = sum(counts[: rank + 1])
    return end - counts[rank], end


def even_counts(global_batch: int, world: int) -> list[int]:
    """Return the number of rows of each rank; they differ by at most one."""
    whole, rest = divmod(global_batch, world)
    return [whole + (rank < rest) for rank in range(world)]


class Batches:
    """Consecutive steps, starting from a given state."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._next = 0

    @property
    def position(self) -> int:
        """Number of the next step."""
        return self._next

    def step(self, number: int) -> Step:
        """Return any step."""
        return Step(number, self.source)

    def next_step(self) -> Step:
        """Return the next step, and advance."""
        self._next += 1
        return Step(self._next - 1, self.source)

    def state(self, agree: Agree | None = None) -> State:
        """Return the position of the next step; the same on every rank.

        Args:
            agree: combines the bookmarks of ranks that know different ones (streamed text). Without it the state holds
                only this rank's bookmarks: it is still exact, but other ranks must tokenise from the beginning to
                continue.
        """
        state: State = {"step": self._next, "epoch": self.source.epoch(self._next), "digest": self.source.digest}
        if (bookmarks := self.source.bookmarks(self._next)) is not None:
            found = torch.from_numpy(bookmarks)
            state["bookmarks"] = ",".join(map(str, (found if agree is None else agree(found)).tolist()))
        return state

    def load(self, state: Mapping[str, object]) -> None:
        """Continue from a state, on any number of ranks.

        Raises:
            DataError: if the state is damaged, or belongs to other data, another seed, sequence or global batch.
        """
        step, digest = state.get("step"), state.get("digest")
        if not isinstance(step, int) or isinstance(step, bool) or step < 0 or not isinstance(digest, str):
            raise DataError(f"not a state of data: {dict(state)!r}: the checkpoint is damaged")
        if digest != self.source.digest:
            raise DataError(
                f"the checkpoint was made with data {digest}, this job has {self.source.digest} "
                "(digest / cut / sequence / order / seed / global batch): use the same [data], [batch] and seed"
            )
        if bookmarks := state.get("bookmarks"):
            self.source.recall(step, _bookmarks(bookmarks, self.source.global_batch))
        self._next = step


def _bookmarks(text: object, count: int) -> Ints:
    try:
        found = np.asarray([int(word) for word in str(text).split(",")], np.int64)
    except (ValueError, OverflowError) as error:
        raise DataError(f"bookmarks {text!r} are not whole numbers: the checkpoint is damaged") from error
    if found.size != count or found.min() < -1:
        raise DataError(f"{found.size} bookmarks from {found.min()}, not {count} from -1: the checkpoint is damaged")
    return found
