"""Clipping of an update before it is sent.

The privacy guarantee relies on the server's clipping. Clipping here too bounds what the server learns to what it uses.
A clipped update stays slightly longer than the clip norm, so that a server that counts the updates above its norm
(Andrew et al. 2021) still counts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from atoll.client._transfer.elements import cut_ranges
from atoll.client.errors import UpdateError
from atoll.wire.encoding import Encoding, FloatArray, encode

if TYPE_CHECKING:
    from atoll.client._transfer.elements import ElementSource
    from atoll.wire.chunks import ElementRange

MARGIN = 1 + 1 / 64
"""Norm of a clipped update divided by the clip norm."""
ANY_FINITE = float(np.finfo(np.float32).max)
BLOCK_ELEMENTS = 1 << 16
"""Number of elements that a pass over an update holds at a time."""


def norm_of(source: ElementSource, ranges: Iterable[ElementRange], encoding: Encoding = Encoding.FLOAT64) -> float:
    """The Euclidean norm of all elements that are sent; one pass that holds ``BLOCK_ELEMENTS`` elements.

    Args:
        source: of the elements.
        ranges: the elements to include.
        encoding: float64, or float32 for half the work if rounding each element does not matter.

    Raises:
        UpdateError: from the source, for values that are not finite; names tensor and element.
    """
    buffer = np.empty(BLOCK_ELEMENTS, encoding.storage)
    squares = []
    for chunk in cut_ranges(ranges, BLOCK_ELEMENTS):
        values = cast("FloatArray", buffer[: chunk.size])
        source.read(chunk, encoding, values)
        squares.append(inner_product(values, values))
    return math.sqrt(math.fsum(squares))


def inner_product(one: FloatArray, other: FloatArray) -> float:
    """The inner product in float64, without BLAS, whose spinning threads slow down other clients on the machine."""
    return float(np.add.reduce(np.multiply(one, other, dtype=np.float64)))


def clip_factor(norm: float, clip_norm: float) -> float:
    """The factor that clips an update; 1 for an update within the clip norm, including zeros.

    Raises:
        UpdateError: if the norm is not finite.
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
        max_abs: the largest magnitude that the server accepts.

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
    """Check that the server accepts these values.

    Raises:
        UpdateError: for a value beyond ``max_abs``.
    """
    largest = max(-float(values.min()), float(values.max()))
    if not largest <= max_abs:
        raise UpdateError(
            f"the update has a value of magnitude {largest:g}; the server accepts up to {max_abs:g}: clip or noise less"
        )
