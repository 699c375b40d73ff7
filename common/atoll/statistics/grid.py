"""The grid of a column: values as integers, with a resolution derived from the column's own range.

The first round finds the octave (power of two) of the lowest and of the highest value of all rows together. If ``2^k``
is the smallest power of two that no magnitude exceeds, values become multiples of the resolution ``2^(k - 52)``:
float64's own precision at the top of the range. Smaller values are rounded to the nearest multiple. Sums, sums of
squares and histogram cells are then integers, and exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LOWEST_OCTAVE = -100
HIGHEST_OCTAVE = 100
"""A value x is in octave e if 2^(e-1) <= |x| < 2^e. Values below the lowest octave count as 0; values above the highest
are refused."""
OCTAVES = HIGHEST_OCTAVE - LOWEST_OCTAVE + 1
OCTAVE_CELLS = 2 * OCTAVES + 1
"""Negative octaves, from the lowest; zero; positive octaves, from the lowest."""
GRID_BITS = 52
_HALF_BITS = 27
_CHUNK = 1 << 8

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Range:
    """The range of a column on its grid.

    Attributes:
        exponent: k: no magnitude exceeds 2^k.
        low: lower edge, in units of the resolution.
        high: upper edge, in units of the resolution; values at this edge are inside.
    """

    exponent: int
    low: int
    high: int

    @property
    def resolution(self) -> float:
        """The distance between neighbouring values of the grid."""
        return float(np.ldexp(1.0, self.exponent - GRID_BITS))


def octave_presence(values: Floats) -> npt.NDArray[np.bool_]:
    """Flags of the octaves that have a value; shape ``(OCTAVE_CELLS,)``.

    Args:
        values: finite, with magnitudes below ``2**HIGHEST_OCTAVE``.
    """
    _, octave = np.frexp(values)
    place = octave - LOWEST_OCTAVE
    cells = np.where(values < 0, place, OCTAVES + 1 + place)
    cells[(values == 0) | (octave < LOWEST_OCTAVE)] = OCTAVES
    found = np.zeros(OCTAVE_CELLS, np.bool_)
    found[cells] = True
    return found


def range_of(present: npt.NDArray[np.bool_]) -> Range:
    """The range of the octaves with a value of any participant; of width 1 if all values are zero."""
    negative = np.flatnonzero(present[:OCTAVES]) + LOWEST_OCTAVE
    positive = np.flatnonzero(present[OCTAVES + 1 :]) + LOWEST_OCTAVE
    zero = bool(present[OCTAVES])
    if not negative.size and not positive.size:
        return Range(0, 0, 1)
    exponent = int(max([*negative, *positive]))
    low = -_edge(int(negative[-1]), exponent) if negative.size else 0
    high = _edge(int(positive[-1]), exponent) if positive.size else 0
    if not negative.size and not zero:
        low = _edge(int(positive[0]) - 1, exponent)
    if not positive.size and not zero:
        high = -_edge(int(negative[0]) - 1, exponent)
    return Range(exponent, low, max(high, low + 1))


def _edge(octave: int, exponent: int) -> int:
    """2^octave in units of 2^(exponent - 52), rounded down."""
    places = octave - exponent + GRID_BITS
    return 1 << places if places >= 0 else 0


def on_grid(values: Floats, exponent: int) -> Integers:
    """The values as multiples of ``2^(exponent - 52)``, rounded to nearest, ties to even; magnitudes up to 2^52.

    Magnitudes below the lowest octave count as 0, as they do for the range.
    """
    values = np.where(np.abs(values) < np.ldexp(1.0, LOWEST_OCTAVE - 1), 0.0, values)
    return np.rint(np.ldexp(values, GRID_BITS - exponent)).astype(np.int64)


def exact_sum(whole: Integers) -> int:
    """The sum of numbers of magnitude up to 2^54, without overflow."""
    high = whole >> _HALF_BITS
    return (_sum(high) << _HALF_BITS) + _sum(whole - (high << _HALF_BITS))


def exact_squares(whole: Integers) -> int:
    """The sum of the squares of numbers of magnitude up to 2^54, without overflow."""
    high = whole >> _HALF_BITS
    low = whole - (high << _HALF_BITS)
    return (_sum(high * high) << 2 * _HALF_BITS) + (_sum(high * low) << _HALF_BITS + 1) + _sum(low * low)


def _sum(whole: Integers) -> int:
    """The sum of numbers of magnitude up to 2^54: int64 in chunks, then Python's integers."""
    parts = np.add.reduceat(whole, np.arange(0, whole.size, _CHUNK)) if whole.size else whole
    return sum(map(int, parts))


def cells_of(whole: Integers, low: int, high: int, top: int, bins: int) -> Integers:
    """The number of values in each of ``bins`` cells of [low, high); the upper edge of the range, ``top``, is included.

    All cells have the same integer width; the last ones may lie beyond ``high`` and are then empty.
    """
    inside = whole[(whole >= low) & ((whole < high) | ((whole == high) & (high == top)))]
    width = cell_width(low, high, bins)
    last = (high - low - 1) // width
    return np.bincount(np.minimum((inside - low) // width, last), minlength=bins)


def cell_width(low: int, high: int, bins: int) -> int:
    """The width of a cell, in units of the resolution; at least 1."""
    return max(1, -(-(high - low) // bins))
