"""The loops of ``_loops`` for plain floats in NumPy: the same bits, operation by operation, several times slower.

Loading numba takes half a second, longer than NumPy needs for all updates of a short simulation of a small model.
``kernel`` chooses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from atoll.server.aggregation._loops import LANES, ROUNDER, ROUNDER_BITS

MOST_ELEMENTS = 1 << 18
"""Maximum number of elements in one call: NumPy holds a few float64 values for each."""
CALL_ELEMENTS = 2_500
"""The fixed cost of a call, in elements."""

Vector = npt.NDArray[Any]
Float64s = npt.NDArray[np.float64]


class Allowance:
    """The work that NumPy may still do in this process; beyond it, loading numba is quicker.

    Args:
        elements: total over all calls; each call adds ``CALL_ELEMENTS``.
    """

    def __init__(self, elements: float) -> None:
        self.left = elements

    def takes(self, elements: int) -> bool:
        """Whether NumPy does a call over this many elements; if so, the call is counted."""
        cost = elements + CALL_ELEMENTS
        if elements > MOST_ELEMENTS or cost > self.left:
            return False
        self.left -= cost
        return True

    def covers(self, elements: int, calls: float) -> bool:
        """Whether NumPy can do this many calls over this many elements each."""
        return elements <= MOST_ELEMENTS and calls * (elements + CALL_ELEMENTS) <= self.left

    def end(self) -> None:
        """Leave everything to the compiled loops, which are now ready."""
        self.left = 0


def fold(
    sums: npt.NDArray[np.int64],
    values: Vector,
    target: tuple[int, int, int, int],
    weight: int,
    scale: float,
    limit: float,
    *,
    first: bool,
) -> int:
    """See ``_loops.fold_with``; ``values`` are floats of any width."""
    offset, block, stride, count = target
    wide = values.astype(np.float64)
    admissible = np.abs(wide) <= limit
    wide[~admissible] = 0.0
    wide *= scale
    wide += ROUNDER
    terms = wide.view(np.int64)
    terms -= ROUNDER_BITS
    terms *= weight
    into = _rows(sums, offset, block, stride, count)
    if first:
        into[...] = terms.reshape(count, block)
    else:
        into += terms.reshape(count, block)
    return int(values.size - np.count_nonzero(admissible))


def inspect(values: Vector) -> tuple[float, float]:
    """The largest magnitude, infinite or NaN if one is, and the sum of squares; see ``_loops.inspect_with``."""
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.abs(wide).max(initial=0.0)), _sum_squares(wide)


def mean(sums: npt.NDArray[np.int64], divisor: float, means: Float64s) -> None:
    """See ``_loops.mean``."""
    np.divide(sums, divisor, out=means)


def average(
    sums: npt.NDArray[np.int64], old: npt.NDArray[Any], divisor: float, lr: float, new: npt.NDArray[np.float32]
) -> tuple[float, float]:
    """The largest magnitude of the new values, and the sum of squares of the mean; see ``_loops.average``."""
    with np.errstate(all="ignore"):
        means = sums / divisor
        new[...] = means * lr + old
        return float(np.abs(new).max(initial=np.float32(0.0))), _sum_squares(means)


def _rows(sums: npt.NDArray[np.int64], offset: int, block: int, stride: int, count: int) -> npt.NDArray[np.int64]:
    """A view of shape (count, block) on the elements of an ``ElementRange``."""
    if count == 1:
        return sums[None, offset : offset + block]
    step = sums.itemsize
    return as_strided(sums[offset:], (count, block), (stride * step, step))


def _sum_squares(wide: Float64s) -> float:
    """Add squares in the order of ``_loops``: lane by lane, then the lanes pairwise."""
    whole = wide.size // LANES * LANES
    squares = wide * wide
    lanes = np.add.reduce(squares[:whole].reshape(-1, LANES), axis=0)  # row by row: only a fast axis is added pairwise
    lanes[: wide.size - whole] += squares[whole:]
    width = LANES // 2
    while width:
        lanes[:width] += lanes[width : 2 * width]
        width //= 2
    return float(lanes[0])
