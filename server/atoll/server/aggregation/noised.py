"""Noised sums: what a private round releases.

Integer noise is added to the integer sum before any division or rounding, so that all later steps are post-processing.
The divisor was fixed before the cohort was drawn, so it does not depend on who reported or how many did
(``atoll.server.privacy``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation.errors import AggregationError
from atoll.server.aggregation.grid import Grid
from atoll.server.aggregation.partial import PartialSum

PIECE = 1 << 16
"""Number of elements drawn at a time, 512 KiB."""
DRAWERS = 2
DRAWN_AHEAD = 8
"""Number of pieces that are drawn, or being drawn, ahead of the reader."""

Integers = npt.NDArray[np.int64]


class Noise(Protocol):
    """The noise of one round."""

    def block(self, start: int, stop: int, /) -> Integers:
        """The noise of elements [start, stop), the same for any division into blocks. Thread-safe."""
        ...


class EmptySum:
    """The sum of no updates: 0 everywhere."""

    def __init__(self, size: int, grid: Grid) -> None:
        self.size = size
        self.grid = grid
        self.total_weight = 0
        self.updates: frozenset[str] = frozenset()

    def sum_block(self, start: int, stop: int) -> Integers:
        """Zeros."""
        return np.zeros(stop - start, np.int64)


class NoisedSum:
    """A sum with its noise, read from the first element to the last; a ``PartialSum``.

    Noise is drawn on separate threads, some pieces ahead of the reader. Use it in a ``with`` statement.

    Args:
        total: the sum of the round's contributions, an ``EmptySum`` if there are none.
        noise: of the round.
        weight: the divisor, which replaces the total weight of the contributions.
        kept: called with each piece of noise and the index of its first element, in order.

    Raises:
        AggregationError: from ``sum_block``, if blocks are not read in order.
    """

    def __init__(
        self, total: PartialSum, noise: Noise, weight: int, kept: Callable[[Integers, int], None] | None = None
    ) -> None:
        self.size = total.size
        self.grid = total.grid
        self.total_weight = weight
        self.updates = total.updates
        self._total = total
        self._noise = noise
        self._kept = kept
        self._pool = ThreadPoolExecutor(DRAWERS, "noise")
        self._coming: deque[Future[Integers]] = deque()
        self._asked = 0
        self._piece, self._from, self._read = np.empty(0, np.int64), 0, 0

    def __enter__(self) -> NoisedSum:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def sum_block(self, start: int, stop: int) -> Integers:
        """The integer sums of elements [start, stop), with their noise."""
        if start != self._read:
            raise AggregationError(f"element {start} is asked for after element {self._read - 1}", "read in order")
        noised = np.array(self._total.sum_block(start, stop))
        while self._read < stop:
            if self._read == self._from + self._piece.size:
                self._next_piece()
            end = min(stop, self._from + self._piece.size)
            noised[self._read - start : end - start] += self._piece[self._read - self._from : end - self._from]
            self._read = end
        return noised

    def _next_piece(self) -> None:
        while self._asked < self.size and len(self._coming) < DRAWN_AHEAD:
            end = min(self._asked + PIECE, self.size)
            self._coming.append(self._pool.submit(self._noise.block, self._asked, end))
            self._asked = end
        self._from += self._piece.size
        self._piece = self._coming.popleft().result()
        if self._kept is not None:
            self._kept(self._piece, self._from)
