"""The integer accumulator: the sum of a round's updates, in fixed point.

See ``grid`` for why it cannot overflow, and ``partial`` for what several of them are to each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation import kernel
from atoll.server.aggregation.errors import AggregationError, DuplicateUpdateError, RejectedUpdateError
from atoll.server.aggregation.grid import Grid
from atoll.server.aggregation.partial import BLOCK, PartialSum, check_mergeable, mean_block
from atoll.server.aggregation.partial_file import PartialFile, write_partial
from atoll.wire.chunks import check_coverage
from atoll.wire.errors import CoverageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from atoll.wire.chunks import ChunkHeader, ElementRange


class _Term(NamedTuple):
    """What an update is multiplied with: its integer weight, negative to take it back, and the factor of its clip."""

    weight: int
    factor: float


class Accumulator:
    """A partial sum in memory: 8 bytes per element, twice a float32 model, whatever the number of updates.

    The memory is touched once when the accumulator is made and kept across rounds (``reset``), because a first touch
    costs more than many folds. The first update is written over what an earlier round has left there, which saves
    zeroing and reading it. Methods may be called from several threads; folds take turns.

    Args:
        size: elements that are summed: N, or those of the fragment that the round is over.
        grid: the round's grid.
        first: the model's element that the sum begins with; chunks name the model's elements, blocks the sum's.
    """

    def __init__(self, size: int, grid: Grid, first: int = 0) -> None:
        if size < 1:
            raise AggregationError(f"size {size}: a sum has at least 1 element")
        self.size = size
        self.first = first
        self.grid = grid
        self.total_weight = 0
        self._updates: set[str] = set()
        self._lock = Lock()
        self._memory = np.empty(size, np.int64)
        self._memory.fill(0)  # touches every page now; np.zeros would leave that to the first round
        self._sums = self._memory
        self._stale = False  # whether the memory holds something else than the sum of ``_updates``, which is none then

    @property
    def updates(self) -> frozenset[str]:
        """The ids of the updates in the sum."""
        return frozenset(self._updates)

    @property
    def room(self) -> int:
        """Elements that its memory is for."""
        return self._memory.size

    def reset(self, grid: Grid, first: int = 0, size: int | None = None) -> None:
        """Empty the sum for a round on ``grid`` in the same memory: over ``size`` elements, else as many as before.

        Raises:
            AggregationError: for more elements than it has room for.
        """
        size = self.size if size is None else size
        if not 1 <= size <= self.room:
            raise AggregationError(f"size {size}: there is room for 1 to {self.room} elements")
        with self._lock:
            self._stale = True
            self._sums, self.size = self._memory[:size], size
            self._updates.clear()
            self.total_weight = 0
            self.grid = grid
            self.first = first

    def fold(
        self, update_id: str, weight: int, chunks: Iterable[tuple[ChunkHeader, Buffer]], norm: float = 0.0
    ) -> None:
        """Add one update, whole or not at all, clipped as the grid says.

        If a value is refused, a chunk does not fit or ``chunks`` raises, what was added of this update is taken back:
        integer sums allow that exactly. Chunks are therefore kept until the end: give views into a map, not copies.

        Args:
            update_id: names the update; each counts at most once.
            weight: integer weight, from ``Grid.weight_of``.
            chunks: headers and payloads that name every summed element exactly once
                (``atoll.wire.chunks.check_coverage``, when the update is committed). Checked again is their number of
                elements, and the coverage too of a sum's first update, which is put where an earlier sum may lie.
            norm: L2 norm of the whole update, as found when it came; a grid that clips needs it.

        Raises:
            RejectedUpdateError: for a value that is not finite or beyond ``grid.max_abs``.
            DuplicateUpdateError: if the update is in the sum already.
            AggregationError: for a weight that the grid does not admit or chunks that do not make up what is summed.
        """
        with self._lock:
            if update_id in self._updates:
                raise DuplicateUpdateError(f"update {update_id!r} is in the sum already", "it counts once")
            room = self.grid.max_total_weight - self.total_weight
            if not 1 <= weight <= room:
                raise AggregationError(
                    f"update {update_id!r} has weight {weight}, the round's grid admits 1 to {room} more",
                    "hold reports to their declared weight",
                )
            put = self._fold_next if self._updates else self._fold_first
            put(update_id, _Term(weight, self.grid.factor(norm)), chunks)
            self._updates.add(update_id)
            self.total_weight += weight

    def merge(self, other: PartialSum) -> None:
        """Add another partial sum of the same round.

        Raises:
            PartialSumError: if it is of another size or grid, or the weights together pass the grid's.
            DuplicateUpdateError: if an update is in both.
        """
        with self._lock:
            check_mergeable(self, other)
            self._freshen()
            for start in range(0, self.size, BLOCK):
                stop = min(start + BLOCK, self.size)
                self._sums[start:stop] += other.sum_block(start, stop)
            self._updates |= other.updates
            self.total_weight += other.total_weight

    def sum_block(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The integer sums of elements [start, stop): a read-only view."""
        self._freshen()
        view = self._sums[start:stop]
        view.flags.writeable = False
        return view

    def mean_block(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        """The weighted mean of elements [start, stop); see ``partial.mean_block``."""
        return mean_block(self, start, stop)

    def write_to(self, path: Path) -> None:
        """Write the sum to a file that ``PartialFile`` reads; see ``partial_file`` for the format."""
        with self._lock:
            write_partial(path, self)

    @classmethod
    def from_file(cls, path: Path) -> Accumulator:
        """A new accumulator with the sum of a file: 8 bytes per element. To only read or merge it, ``PartialFile``.

        Raises:
            PartialSumError: if the file is truncated, altered, or not a partial sum.
        """
        partial = PartialFile(path)
        made = cls(partial.size, partial.grid)
        made.merge(partial)
        return made

    def _fold_first(self, update_id: str, term: _Term, chunks: Iterable[tuple[ChunkHeader, Buffer]]) -> None:
        """Put an update into an empty sum. Until its chunks are known to name every element the memory is stale."""
        self._stale = True
        ranges: list[ElementRange] = []
        for header, payload in chunks:
            refused = self._fold_chunk(update_id, header, payload, term, first=True)
            _check_accepted(update_id, header, payload, refused, self.grid)
            ranges.append(header.range)
        _check_whole(update_id, sum(one.size for one in ranges), self.size)
        try:
            check_coverage(ranges, self.size, self.first)
        except CoverageError as error:
            raise AggregationError(f"update {update_id!r}: {error}", "send it again") from error
        self._stale = False

    def _fold_next(self, update_id: str, term: _Term, chunks: Iterable[tuple[ChunkHeader, Buffer]]) -> None:
        folded: list[tuple[ChunkHeader, Buffer]] = []
        try:
            for header, payload in chunks:
                refused = self._fold_chunk(update_id, header, payload, term)
                folded.append((header, payload))
                _check_accepted(update_id, header, payload, refused, self.grid)
            _check_whole(update_id, sum(header.range.size for header, _ in folded), self.size)
        except BaseException:
            for header, payload in folded:
                self._fold_chunk(update_id, header, payload, _Term(-term.weight, term.factor))
            raise

    def _fold_chunk(
        self, update_id: str, header: ChunkHeader, payload: Buffer, term: _Term, *, first: bool = False
    ) -> int:
        place, grid = self._place(update_id, header), self.grid
        return kernel.fold(
            self._sums, place, payload, header.encoding, term.weight, grid, factor=term.factor, first=first
        )

    def _place(self, update_id: str, header: ChunkHeader) -> ElementRange:
        """A chunk's elements, counted from the sum's first; the kernel checks that they end within it."""
        span = header.range
        if span.offset < self.first:
            raise AggregationError(
                f"update {update_id!r} has element {span.offset}; summed are those from {self.first} on",
                "send it again",
            )
        return span.shifted(-self.first) if self.first else span

    def _freshen(self) -> None:
        """Make the memory hold the sum, which is 0 everywhere if it is stale."""
        if self._stale:
            self._sums.fill(0)
            self._stale = False


def _check_whole(update_id: str, elements: int, size: int) -> None:
    if elements != size:
        raise AggregationError(f"update {update_id!r} has {elements} elements, summed are {size}", "send it again")


def _check_accepted(update_id: str, header: ChunkHeader, payload: Buffer, refused: int, grid: Grid) -> None:
    if not refused:
        return
    found = kernel.inspect(payload, header.encoding, header.range.size)
    worst = f"up to magnitude {found.max_abs:g}" if found.finite else "infinity or NaN among them"
    raise RejectedUpdateError(
        f"update {update_id!r}: {refused} of {header.range.size} values from element {header.range.offset} are not "
        f"finite or beyond {grid.max_abs:g} ({worst})",
        "lower the learning rate, clip the update, or raise max_abs",
    )
