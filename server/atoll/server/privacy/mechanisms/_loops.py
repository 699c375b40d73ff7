"""The loops that numba compiles for correlated noise; exact for noise up to 2**54 and 1,000 bands.

An integer n is split as ``n = high * 2**24 + low``, so that products with coefficients out of 2**20, and their sums,
stay below 2**63.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

SPLIT_BITS = 24
COEFFICIENT_BITS = 20
_LOW = (1 << SPLIT_BITS) - 1
_HALF = 1 << (COEFFICIENT_BITS - 1)
_RAISE = SPLIT_BITS - COEFFICIENT_BITS

Integers = npt.NDArray[np.int64]
AddScaled = Callable[[Integers, Integers, int, Integers], None]
Subtract = Callable[[Integers, Integers, Integers], None]


def add_scaled(high: Integers, low: Integers, factor: int, noise: Integers) -> None:
    """Add ``factor * noise`` to the sums of high and low parts."""
    for at in range(noise.size):
        high[at] += factor * (noise[at] >> SPLIT_BITS)
        low[at] += factor * (noise[at] & _LOW)


def subtract(noise: Integers, high: Integers, low: Integers) -> None:
    """``noise -= floor((high * 2**24 + low) / 2**20 + 1/2)``."""
    for at in range(noise.size):
        noise[at] -= (high[at] << _RAISE) + ((low[at] + _HALF) >> COEFFICIENT_BITS)
