"""Tables for one sigma: exact thresholds as integers, and the parts of them that the loops read.

The magnitude m of a sample is ``h * w + l``, with blocks of width ``w = 2**b`` so that ``32 <= sigma / w < 64`` (below
sigma = 64, w = 1). Block h is drawn with weight ``r_h = exp(-(h*w)**2 / (2 sigma**2))``, the largest weight within it.
``thresholds[h]`` is ``floor(2**192 * (r_0 + ... + r_h) / (r_0 + r_1 + ...))``: a uniform integer below 2**192 falls in
the first block whose threshold exceeds it. With w = 1 the blocks are the magnitudes and a zero has no sign: then r_0
counts half.

Blocks extend to 16 sigma; less than 2**-183 of the distribution is beyond. The sums are formed with 320 fractional bits
from one correctly rounded exponential, with an error below 2**-280.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

CELL_BITS = 14
MIXED = 255
DONE, AGAIN, UNCLEAR = 0, 1, 2
"""A loop's verdict on an element."""
LEAST_SIGMA = 2.0**-4
LARGEST_SIGMA = 2.0**50
REACH = 16
"""Standard deviations at which the distribution is truncated."""
UNIFORM_BITS = 192
COIN_BITS = 146
SHORT_COIN_BITS = 18
_BITS = 320
_DIGITS = 110

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

_CONTEXT = decimal.Context(prec=_DIGITS, Emin=-decimal.MAX_EMAX, rounding=decimal.ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that decide samples of one sigma.

    Attributes:
        low_bits: b.
        thresholds: of block h, out of 2**192.
        words: their highest 64 bits.
        guide: for each value of a uniform's highest 14 bits, the block of all such uniforms; ``MIXED`` if they fall in
            several blocks, or in a block from 255 on.
        rate: ``1 / (2 sigma**2)``, exact.
        slopes: ``(2**-b, (2**b / sigma)**2)``, for the loops.
    """

    low_bits: int
    thresholds: tuple[int, ...]
    words: Words
    guide: Bytes
    rate: Fraction
    slopes: tuple[float, float]

    @property
    def zero_is_fine(self) -> int:
        """1 if zero is a block of its own and therefore needs no sign."""
        return int(self.low_bits == 0)

    def accepts(self, block: int, low: int, coin: int) -> bool:
        """Whether a coin out of 2**146 is below ``exp(-(m**2 - (block*w)**2) / (2 sigma**2))``, rounded down."""
        start = block << self.low_bits
        exponent = self.rate * (low * (2 * start + low))
        return coin < int(_CONTEXT.multiply(_exp_minus(exponent), decimal.Decimal(1 << COIN_BITS)))


@lru_cache(maxsize=32)
def tables_of(sigma: float) -> Tables:
    """The tables of one sigma: 25 KiB, about 3 ms; the last 32 are cached.

    Raises:
        ValueError: for a sigma outside [2**-4, 2**50].
    """
    if not LEAST_SIGMA <= sigma <= LARGEST_SIGMA:
        raise ValueError(f"sigma {sigma:g}: discrete noise is drawn for {LEAST_SIGMA:g} to 2**50 grid units")
    low_bits = max(0, math.frexp(sigma)[1] - 6)
    width = 1 << low_bits
    rate = 1 / (2 * Fraction(sigma) ** 2)
    thresholds = _thresholds(rate * width**2, math.ceil(REACH * sigma / width), halved=low_bits == 0)
    words = np.array([threshold >> (UNIFORM_BITS - 64) for threshold in thresholds], np.uint64)
    words.flags.writeable = False
    ratio = width / sigma
    return Tables(low_bits, thresholds, words, _guide(words), rate, (1.0 / width, ratio * ratio))


def _thresholds(exponent: Fraction, last: int, *, halved: bool) -> tuple[int, ...]:
    """Thresholds of blocks 0 to ``last`` with weights ``exp(-exponent * h**2)``, except that the last is 2**192."""
    base = int(_CONTEXT.multiply(_exp_minus(exponent), decimal.Decimal(1 << _BITS)))
    ratio, square = base, (base * base) >> _BITS
    weight = 1 << _BITS
    sums, total = [], 0
    for block in range(last + 1):
        total += weight >> 1 if halved and block == 0 else weight
        sums.append(total)
        weight = (weight * ratio) >> _BITS
        ratio = (ratio * square) >> _BITS
    return tuple((part << UNIFORM_BITS) // total for part in sums[:-1])


def _exp_minus(exponent: Fraction) -> decimal.Decimal:
    """``exp(-exponent)``, to a relative 1e-100."""
    numerator, denominator = decimal.Decimal(-exponent.numerator), decimal.Decimal(exponent.denominator)
    return _CONTEXT.exp(_CONTEXT.divide(numerator, denominator))


def _guide(words: Words) -> Bytes:
    """See ``Tables.guide``. A cell with a threshold's highest word is mixed: a tie would be undecided."""
    cells = np.arange(1 << CELL_BITS, dtype=np.uint64) << np.uint64(64 - CELL_BITS)
    ends = cells + np.uint64((1 << (64 - CELL_BITS)) - 1)
    block = np.searchsorted(words, cells)
    pure = block == np.searchsorted(words, ends, side="right")
    guide = np.where(pure & (block < MIXED), block, MIXED).astype(np.uint8)
    guide.flags.writeable = False
    return guide
