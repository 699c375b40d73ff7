"""A partial sum in the form that is sent between workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation import Grid, MergedSum, PartialSum
from atoll.server.aggregation.partial import BLOCK


@dataclass(frozen=True)
class ArraySum:
    """A partial sum in one int64 array; see ``PartialSum``. Workers of one machine read it in shared memory."""

    grid: Grid
    total_weight: int
    updates: frozenset[str]
    sums: npt.NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.sums.size

    def sum_block(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The integer sums of elements [start, stop): a read-only view."""
        view = self.sums[start:stop]
        view.flags.writeable = False
        return view


def merged(parts: Sequence[PartialSum]) -> ArraySum:
    """Add partial sums into new memory, without changing them.

    Raises:
        PartialSumError: see ``MergedSum``.
    """
    total = MergedSum(parts)
    sums = np.empty(total.size, np.int64)
    for start in range(0, total.size, BLOCK):
        stop = min(start + BLOCK, total.size)
        sums[start:stop] = total.sum_block(start, stop)
    return ArraySum(total.grid, total.total_weight, total.updates, sums)
