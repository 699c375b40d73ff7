"""Pieces of a partial sum on the wire: int64 sums, each piece in as few bytes an element as its largest one needs.

A grid has room for the largest total weight and magnitude, most sums are far below it: 5 of 8 bytes are usual.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atoll.server.errors import InvalidRequestError

PIECE = 1 << 16
"""Elements of each piece but the last: at most 512 KiB."""
_BYTES = 8
Sums = npt.NDArray[np.int64]


def piece_count(elements: int) -> int:
    """Number of pieces of a sum."""
    return -(-elements // PIECE)


def bounds_of(index: int, elements: int) -> tuple[int, int]:
    """The elements [start, stop) of a piece."""
    return index * PIECE, min((index + 1) * PIECE, elements)


def pack(sums: Sums) -> tuple[int, bytes]:
    """Width in bytes and payload of a piece: little-endian two's complement."""
    width = _width_of(int(sums.min()), int(sums.max()))
    raw = sums.astype("<i8", copy=False).view(np.uint8).reshape(-1, _BYTES)
    return width, raw[:, :width].tobytes()


def unpack(width: int, payload: bytes, elements: int) -> Sums:
    """The sums of a piece.

    Raises:
        InvalidRequestError: if width or length do not fit.
    """
    if not 1 <= width <= _BYTES or len(payload) != width * elements:
        raise InvalidRequestError(
            "partial.piece", f"{len(payload)} bytes of width {width} for {elements} sums", "send whole pieces"
        )
    raw = np.zeros((elements, _BYTES), np.uint8)
    raw[:, _BYTES - width :] = np.frombuffer(payload, np.uint8).reshape(elements, width)
    found: Sums = raw.reshape(-1).view("<i8").astype(np.int64, copy=False)
    found >>= 8 * (_BYTES - width)  # an arithmetic shift, which extends the sign
    return found


def _width_of(least: int, largest: int) -> int:
    bits = max(largest, -least - 1, 0).bit_length() + 1
    return -(-bits // 8)
