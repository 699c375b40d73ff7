"""Integers of any size as limbs: float64 values that a round sums without rounding.

A round's sum accepts elements up to ``MAX_ABS`` and adds them exactly. An integer is cut into limbs of ``LIMB_BITS``
bits, lowest first; the highest has the sign. Recombining the sums of the limbs over participants gives the exact sum of
the integers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

LIMB_BITS = 20
MAX_ABS = 2.0**LIMB_BITS
"""Largest magnitude of a limb: the ``aggregation.max_abs`` of a statistics run."""
COUNT_LIMBS = 2
"""Counts of rows: below 2^40."""
MAX_ROWS = 2**40 - 1
SUM_LIMBS = 5
"""Sums of values on the grid: 53 bits each, of 2^40 rows."""
SQUARE_LIMBS = 8
"""Sums of their squares: 106 bits each, of 2^40 rows."""

Floats = npt.NDArray[np.float64]


def to_limbs(number: int, limbs: int) -> list[int]:
    """The limbs of an integer, lowest first.

    Raises:
        OverflowError: for a number that does not fit.
    """
    if not -(1 << (LIMB_BITS * limbs)) <= number < 1 << (LIMB_BITS * limbs):
        raise OverflowError(f"{number} has more than {limbs} limbs of {LIMB_BITS} bits")
    low = [number >> (LIMB_BITS * place) & (1 << LIMB_BITS) - 1 for place in range(limbs - 1)]
    return [*low, number >> LIMB_BITS * (limbs - 1)]


def from_limbs(limbs: Iterable[float]) -> int:
    """The integer represented by limbs, or by sums of limbs."""
    return sum(int(limb) << (LIMB_BITS * place) for place, limb in enumerate(limbs))


def counts_to_limbs(counts: npt.NDArray[np.int64]) -> Floats:
    """Counts of any shape, as limbs along a new last axis."""
    low = counts & (1 << LIMB_BITS) - 1
    return np.stack([low, counts >> LIMB_BITS], axis=-1).astype(np.float64)


def counts_from_limbs(limbs: Floats) -> npt.NDArray[np.int64]:
    """Counts from limbs, or sums of limbs, along the last axis."""
    whole = limbs.astype(np.int64)
    found: npt.NDArray[np.int64] = whole[..., 0] + (whole[..., 1] << LIMB_BITS)
    return found
