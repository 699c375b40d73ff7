"""Choose the cells to hide: small ones, and others needed so that their rows do not follow from a total."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atoll.statistics.limbs import Floats

Integers = npt.NDArray[np.int64]
SUPPRESSED = -1.0


@dataclass(frozen=True)
class Hiding:
    """The rules of one query.

    Attributes:
        min_rows: minimum rows of a released cell, unless it is empty.
        min_participants: minimum number of participants with rows in it.
    """

    min_rows: int
    min_participants: int

    def too_small(self, count: int, holders: float) -> bool:
        """Whether a cell has rows, but too few, or from too few participants."""
        return bool(count > 0 and (count < self.min_rows or holders < self.min_participants))

    def released(self, counts: Integers, holders: Floats, also: npt.NDArray[np.bool_] | None = None) -> Floats:
        """Counts of cells whose total is known, with small cells suppressed.

        The number of rows in all hidden cells together follows from the total. If only one cell is hidden, or the
        hidden rows are too few, the next smallest cell is hidden too.

        Args:
            counts: rows of each cell.
            holders: participants with rows in each.
            also: cells that are hidden for another reason.
        """
        small = np.array([self.too_small(*cell) for cell in zip(counts, holders, strict=True)], np.bool_)
        hidden = small if also is None else small | also
        others = np.flatnonzero(~hidden & (counts > 0))
        some = hidden & (counts > 0)
        if some.any() and others.size and not self._hide_each_other(counts[some], holders[some]):
            hidden[others[np.argmin(counts[others])]] = True
        return np.where(hidden, SUPPRESSED, counts.astype(np.float64))

    def _hide_each_other(self, counts: Integers, holders: Floats) -> bool:
        """Whether the sum of these cells reveals none of them and is not itself a small cell.

        Cells may share participants: the union has at least as many as the cell with the most holders.
        """
        return counts.size > 1 and not self.too_small(int(counts.sum()), float(holders.max()))
