"""Scaling an update down to a norm before it is sent.

The operator's clipping is what its privacy rests on. This one sends no more than will be used, and bounds what the
server learns. What is clipped stays a little longer than asked for, so that a server that counts how many updates are
longer than its norm (Andrew et al. 2021) still counts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from atoll.client.errors import UpdateError
from atoll.client.transfer.cut import cut_ranges
from atoll.wire.encoding import Encoding, FloatArray, encode

if TYPE_CHECKING:
    from atoll.client.transfer.source import ElementSource
    from atoll.wire.chunks import ElementRange

MARGIN = 1 + 1 / 64
"""How much longer than the norm an update stays that was longer."""
ANY_FINITE = float(np.finfo(np.float32).max)
BLOCK = 1 << 16
"""Elements that are held at a time."""


def norm_of(source: ElementSource, ranges: Iterable[ElementRange], encoding: Encoding = Encoding.FLOAT64) -> float:
    """The Euclidean norm of the elements that are sent, taken together; one pass, ``BLOCK`` elements of memory.

    Args:
        source: of the elements.
        ranges: which of them.
        encoding: float64, or float32 for half the work where a rounding of each element does not matter.

    Raises:
        UpdateError: from the source, naming tensor and element, for values that are not finite.
    """
    room: FloatArray = np.empty(BLOCK, np.float64) if encoding is Encoding.FLOAT64 else np.empty(BLOCK, np.float32)
    squares = []
    for chunk in cut_ranges(ranges, BLOCK):
        values = room[: chunk.size]
        source.read(chunk, encoding, values)
        squares.append(product_of(values, values))
    return math.sqrt(math.fsum(squares))


def product_of(one: FloatArray, other: FloatArray) -> float:
    """The inner product in float64. Without BLAS: its threads spin, which other clients of the machine would feel."""
    return float(np.add.reduce(np.multiply(one, other, dtype=np.float64)))


def clip_factor(norm: float, clip_norm: float) -> float:
    """What to multiply an update by; 1 if it is short enough, also if it is all zeros.

    Raises:
        UpdateError: if the norm is not finite: no factor makes such an update short.
    """
    if not math.isfinite(norm):
        raise UpdateError(f"the update's norm is {norm}; it must be finite: lower the learning rate")
    longest = MARGIN * clip_norm
    return 1.0 if norm <= longest else longest / norm


class Scaled:
    """An ``ElementSource`` times a factor.

    Args:
        source: of finite values.
        factor: at most 1.
        max_abs: the largest magnitude that the server takes.

    Raises:
        UpdateError: from ``read``, for a value beyond ``max_abs``.
    """

    def __init__(self, source: ElementSource, factor: float, max_abs: float) -> None:
        self._source, self._factor, self._max_abs = source, factor, max_abs

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:
        """See ``ElementSource``."""
        if encoding is Encoding.FLOAT32:
            self._source.read(elements, encoding, out)
            np.multiply(out, np.float32(self._factor), out=out)
            check(cast("npt.NDArray[np.float32]", out), self._max_abs)
            return
        values = np.empty(elements.size)
        self._source.read(elements, Encoding.FLOAT64, values)
        values *= self._factor
        write_checked(values, encoding, out, self._max_abs)


def write_checked(
    values: npt.NDArray[np.float64], encoding: Encoding, out: npt.NDArray[np.generic], max_abs: float
) -> None:
    """Write values in an encoding.

    Raises:
        UpdateError: for one beyond ``max_abs``.
    """
    check(values, max_abs)
    wide = values if encoding is Encoding.FLOAT64 else values.astype(np.float32)
    out[:] = encode(wide, encoding)


def check(values: npt.NDArray[np.floating[Any]], max_abs: float) -> None:
    """See that the server takes these values.

    Raises:
        UpdateError: for one beyond ``max_abs``.
    """
    largest = max(-float(values.min()), float(values.max()))
    if not largest <= max_abs:
        raise UpdateError(
            f"the update has a value of magnitude {largest:g}; the server accepts up to {max_abs:g}: clip or noise less"
        )
