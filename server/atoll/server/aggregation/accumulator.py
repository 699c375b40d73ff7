"""The integer accumulator: the fixed-point sum of a round's updates.

See ``grid`` for why it cannot overflow, and ``partial`` for merging several of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation import kernel
from atoll.server.aggregation.errors import AggregationError, DuplicateUpdateError, RejectedUpdateError
from atoll.server.aggregation.grid import Grid
from atoll.server.aggregation.partial import mean_block
from atoll.wire.chunks import check_coverage
from atoll.wire.errors import CoverageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from atoll.wire.chunks import ChunkHeader, ElementRange


class _Term(NamedTuple):
    """The factors of an update: its integer weight, negative to take it back, and its clip factor."""

    weight: int
    factor: float


class Accumulator:
    """A partial sum in memory: 8 bytes per element, twice a float32 model, for any number of updates.

    The memory is touched once when the accumulator is made and kept across rounds (``reset``), because a first touch
    costs more than many folds. The first update overwrites the sum of an earlier round, which saves zeroing and reading
    it. Methods may be called from several threads; folds are serialised.

    Args:
        size: number of summed elements: N, or those of the round's fragment.
        grid: the round's grid.
        first: index of the sum's first element in the model. Chunks count elements from the start of the model, blocks
            from the start of the sum.
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
        self._memory.fill(0)  # touch every page now; np.zeros would defer that to the first round
        self._sums = self._memory
        self._stale = False  # whether the memory still holds an earlier sum; ``_updates`` is then empty

    @property
    def updates(self) -> frozenset[str]:
        """The ids of the updates in the sum."""
        return frozenset(self._updates)

    @property
    def capacity(self) -> int:
        """Capacity of the memory, in elements."""
        return self._memory.size

    def reset(self, grid: Grid, first: int = 0, size: int | None = None) -> None:
        """Empty the sum for a round on ``grid``, in the same memory, over ``size`` elements or as many as before.

        Raises:
            AggregationError: for more elements than the memory holds.
        """
        size = self.size if size is None else size
        if not 1 <= size <= self.capacity:
            raise AggregationError(f"size {size}: the accumulator holds 1 to {self.capacity} elements")
        with self._lock:
            self._stale = True
            self._sums, self.size = self._memory[:size], size
            self._updates.clear()
            self.total_weight = 0
            self.grid = grid
            self.first = first

    def fold(
        self,
        update_id: str,
        weight: int,
        chunks: Iterable[tuple[ChunkHeader, Buffer]],
        norm: float = 0.0,
        *,
        again: bool = False,
    ) -> None:
        """Add one update, all or nothing, clipped to the grid's norm.

        If a value is refused, a chunk does not fit or ``chunks`` raises, the part of this update that was added is
        subtracted again, which integer sums allow exactly. Chunks are therefore kept until the end unless ``again`` is
        set: pass views into a map, not copies.

        Args:
            update_id: id of the update; each counts at most once.
            weight: integer weight, from ``Grid.weight_of``.
            chunks: headers and payloads that name every summed element exactly once
                (``atoll.wire.chunks.check_coverage``, when the update is committed). The number of elements is checked
                again here. The coverage is checked for a sum's first update, which overwrites an earlier sum.
            norm: L2 norm of the whole update, measured on arrival; needed by a grid that clips.
            again: whether ``chunks`` yields the same chunks when it is iterated again; then only one chunk is held at a
                time.

        Raises:
            RejectedUpdateError: for a value that is not finite or beyond ``grid.max_abs``.
            DuplicateUpdateError: if the update is already in the sum.
            AggregationError: for a weight that the grid does not admit, or chunks that do not match the summed
                elements.
        """
        with self._lock:
            if update_id in self._updates:
                raise DuplicateUpdateError(f"update {update_id!r} is in the sum already", "it counts once")
            left = self.grid.max_total_weight - self.total_weight
            if not 1 <= weight <= left:
                raise AggregationError(
                    f"update {update_id!r} has weight {weight}, the round's grid admits 1 to {left} more",
                    "limit reports to their declared weight",
                )
            term = _Term(weight, self.grid.factor(norm))
            if self._updates:
                self._fold_next(update_id, term, chunks, again=again)
            else:
                self._fold_first(update_id, term, chunks)
            self._updates.add(update_id)
            self.total_weight += weight

    def sum_block(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The integer sums of elements [start, stop): a read-only view."""
        self._freshen()
        view = self._sums[start:stop]
        view.flags.writeable = False
        return view

    def mean_block(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        """The weighted mean of elements [start, stop); see ``partial.mean_block``."""
        return mean_block(self, start, stop)

    def _fold_first(self, update_id: str, term: _Term, chunks: Iterable[tuple[ChunkHeader, Buffer]]) -> None:
        """Put an update into an empty sum. The memory is stale until the chunks have covered every element."""
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

    def _fold_next(
        self, update_id: str, term: _Term, chunks: Iterable[tuple[ChunkHeader, Buffer]], *, again: bool
    ) -> None:
        kept: list[tuple[ChunkHeader, Buffer]] = []
        folded = elements = 0
        try:
            for header, payload in chunks:
                refused = self._fold_chunk(update_id, header, payload, term)
                folded, elements = folded + 1, elements + header.range.size
                if not again:
                    kept.append((header, payload))
                _check_accepted(update_id, header, payload, refused, self.grid)
            _check_whole(update_id, elements, self.size)
        except BaseException:
            for header, payload in islice(chunks, folded) if again else kept:
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
        """A chunk's elements, relative to the sum's first element; the kernel checks the end."""
        span = header.range
        if span.offset < self.first:
            raise AggregationError(
                f"update {update_id!r} has element {span.offset}; the sum begins at element {self.first}",
                "send it again",
            )
        return span.shifted(-self.first) if self.first else span

    def _freshen(self) -> None:
        """Make the memory hold the sum: fill it with zeros if it is stale."""
        if self._stale:
            self._sums.fill(0)
            self._stale = False


def _check_whole(update_id: str, elements: int, size: int) -> None:
    if elements != size:
        raise AggregationError(f"update {update_id!r} has {elements} elements, the sum {size}", "send it again")


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
