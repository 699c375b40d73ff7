"""Narrow the cell of a quantile while it keeps enough rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from atoll.statistics.grid import cell_width

Integers = npt.NDArray[np.int64]


class Interval(NamedTuple):
    """A cell, in units of the column's resolution."""

    low: int
    high: int


def narrowed(cell: Interval, rank: int, parts: Integers, enough: int) -> tuple[int, int, int]:
    """The part of a cell that contains the value with this rank, extended by its neighbours if it has too few rows.

    Args:
        cell: with at least ``enough`` rows.
        rank: of the value, from 1, among the rows of the cell.
        parts: rows of each part of the cell.
        enough: minimum number of rows of the result.

    Returns:
        Lower edge, upper edge, and 1 if the result must not be cut again, else 0. Extended parts are not cut again,
        because the edges would move up to the values of the outermost rows.
    """
    part = int(np.searchsorted(np.cumsum(parts), rank))
    if rank < 1 or part == parts.size:  # a participant's table has changed since the previous round
        return cell.low, cell.high, 1
    first, last = part, part
    while parts[first : last + 1].sum() < enough and (first > 0 or last < parts.size - 1):
        first, last = max(0, first - 1), min(parts.size - 1, last + 1)
    width = cell_width(cell.low, cell.high, parts.size)
    low, high = cell.low + first * width, min(cell.low + (last + 1) * width, cell.high)
    return low, high, int(first < last)
