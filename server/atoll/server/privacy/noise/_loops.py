"""The loops that numba compiles; ``discrete`` calls them with types and explains their decisions.

Both take ``shape``: (low bits b, flags at zero) and ``slopes``: (2**-b, (2**b / sigma)**2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation._jit import callable_from_loops
from atoll.server.privacy.noise.tables import AGAIN, CELL_BITS, DONE, MIXED, SHORT_COIN_BITS, UNCLEAR, Bytes, Words

SLACK = 2.0**-20
"""Margin of a comparison in units of 2**-18: 2**-38 of the probability, a thousand times float64's error."""

_COIN = float(1 << SHORT_COIN_BITS)
_COIN_MASK = np.uint64((1 << SHORT_COIN_BITS) - 1)
_CELL_SHIFT = np.uint64(64 - CELL_BITS)
_SURE = _COIN - 1.0 - SLACK

Integers = npt.NDArray[np.int64]
First = Callable[[Words, Bytes, tuple[int, int], tuple[float, float], Integers, Bytes], int]
Gather = Callable[[Words, Bytes, int, Integers, Words], int]
Second = Callable[[Words, Words, tuple[int, int], tuple[float, float], Integers, Bytes], None]


@callable_from_loops
def low_of(word: np.uint64, bits: int) -> np.int64:
    """The b bits below the highest one."""
    return np.int64((word >> np.uint64(63 - bits)) & np.uint64((1 << bits) - 1))


@callable_from_loops
def signed(magnitude: np.int64, word: np.uint64) -> np.int64:
    """The magnitude with the sign in the word's highest bit."""
    minus = np.int64(word >> np.uint64(63))
    return (magnitude ^ -minus) + minus


def first(
    words: Words, guide: Bytes, shape: tuple[int, int], slopes: tuple[float, float], out: Integers, open_: Bytes
) -> int:
    """Write each element's value, and 1 to ``open_`` where it is not yet certain; returns the number of open elements.

    A value is certain if its guide cell lies in one block and its coin is below 1 - t, which is below exp(-t).
    """
    bits, zero = shape
    inverse, slope = slopes
    count = 0
    for at in range(out.size):
        word = words[2 * at + 1]
        block = np.int64(guide[words[2 * at] >> _CELL_SHIFT])
        low = low_of(word, bits)
        part = np.float64(low) * inverse
        t = slope * part * (np.float64(block) + 0.5 * part)
        coin = np.float64(np.int64(word & _COIN_MASK))
        magnitude = (block << bits) + low
        unsure = (block == MIXED) | (coin + t * _COIN > _SURE) | (magnitude + zero == 0)
        out[at] = signed(magnitude, word)
        open_[at] = unsure
        count += unsure
    return count


def gather(words: Words, open_: Bytes, offset: int, where: Integers, kept: Words) -> int:
    """Write index and bits of the open elements to ``where`` and ``kept``; returns their number."""
    count = 0
    for at in range(open_.size):
        if open_[at]:
            where[count] = offset + at
            kept[2 * count] = words[2 * at]
            kept[2 * count + 1] = words[2 * at + 1]
            count += 1
    return count


def second(
    words: Words,
    thresholds: Words,
    shape: tuple[int, int],
    slopes: tuple[float, float],
    values: Integers,
    states: Bytes,
) -> None:
    """Decide elements by the full thresholds and the exponential: DONE, AGAIN (rejected) or UNCLEAR."""
    bits, zero = shape
    inverse, slope = slopes
    for at in range(values.size):
        word, uniform = words[2 * at + 1], words[2 * at]
        block = np.searchsorted(thresholds, uniform)
        if block == thresholds.size or thresholds[block] == uniform:
            states[at] = UNCLEAR
            continue
        low = low_of(word, bits)
        part = np.float64(low) * inverse
        chance = _COIN * math.exp(-slope * part * (np.float64(block) + 0.5 * part))
        coin = np.float64(np.int64(word & _COIN_MASK))
        magnitude = (np.int64(block) << bits) + low
        values[at] = signed(magnitude, word)
        if coin >= chance + SLACK or (magnitude + zero == 0 and word >> np.uint64(63) != 0):
            states[at] = AGAIN
        elif coin + 1.0 <= chance - SLACK or low == 0:
            states[at] = DONE
        else:
            states[at] = UNCLEAR
