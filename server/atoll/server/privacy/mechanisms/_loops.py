"""The loops that numba compiles for correlated noise.

Banded noise is exact for values up to 2**54 and up to 1,000 bands. An integer n is split as ``n = high * 2**24 + low``,
so that products with coefficients in units of 2**-20, and their sums, stay below 2**63.

BLT noise is exact for buffers below 2**62 units. They are split in the same way. Decays and scales are in units of
2**-24, and scales add up to at most 1. The buffers of one element are adjacent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

SPLIT_BITS = 24
COEFFICIENT_BITS = 20
_LOW = (1 << SPLIT_BITS) - 1
_HALF = 1 << (COEFFICIENT_BITS - 1)
_HALF_UNIT = 1 << (SPLIT_BITS - 1)
_RAISE = SPLIT_BITS - COEFFICIENT_BITS

Integers = npt.NDArray[np.int64]
AddScaled = Callable[[Integers, Integers, int, Integers], None]
Subtract = Callable[[Integers, Integers, Integers], None]
SubtractBuffers = Callable[[Integers, Integers, Integers, int], None]
Push = Callable[[Integers, Integers, Integers, int], None]


def add_scaled(high: Integers, low: Integers, factor: int, noise: Integers) -> None:
    """Add ``factor * noise`` to the sums of high and low parts."""
    for at in range(noise.size):
        high[at] += factor * (noise[at] >> SPLIT_BITS)
        low[at] += factor * (noise[at] & _LOW)


def subtract(noise: Integers, high: Integers, low: Integers) -> None:
    """``noise -= floor((high * 2**24 + low) / 2**20 + 1/2)``."""
    for at in range(noise.size):
        noise[at] -= (high[at] << _RAISE) + ((low[at] + _HALF) >> COEFFICIENT_BITS)


def subtract_buffers(noise: Integers, buffers: Integers, scales: Integers, fraction_bits: int) -> None:
    """``noise -= floor(sum of scale * buffer + 1/2)``, for each element.

    Args:
        noise: (elements,).
        buffers: (elements * scales.size,), in units of 2**-fraction_bits.
        scales: in units of 2**-24.
        fraction_bits: at least 1.
    """
    count, half = scales.size, 1 << (fraction_bits - 1)
    for at in range(noise.size):
        high, low = 0, 0
        for number in range(count):
            value = buffers[at * count + number]
            high += scales[number] * (value >> SPLIT_BITS)
            low += scales[number] * (value & _LOW)
        noise[at] -= (high + (low >> SPLIT_BITS) + half) >> fraction_bits


def push(noise: Integers, buffers: Integers, decays: Integers, fraction_bits: int) -> None:
    """``buffer = floor(decay * buffer + 1/2) + noise``, in units of 2**-fraction_bits; arguments as above."""
    count = decays.size
    for at in range(noise.size):
        for number in range(count):
            value = buffers[at * count + number]
            decayed = decays[number] * (value >> SPLIT_BITS)
            decayed += (decays[number] * (value & _LOW) + _HALF_UNIT) >> SPLIT_BITS
            buffers[at * count + number] = decayed + (noise[at] << fraction_bits)
