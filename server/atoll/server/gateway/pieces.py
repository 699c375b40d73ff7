"""Pieces of a partial sum on the wire: int64 sums, packed to as few bytes per element as the largest needs.

A grid has room for the largest total weight and magnitude, and most sums are far below it. Integer weights are example
counts shifted left (``Grid.weight_shift``), so the low bits of all sums are zero and are not sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atoll.server.errors import InvalidRequestError

PIECE = 1 << 16
"""Elements of each piece except the last, at most 512 KiB."""
_BYTES, _BITS = 8, 64
Sums = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Sums divided by ``2**shift``, each in ``width`` bytes: little-endian two's complement."""

    shift: int
    width: int
    payload: bytes


def piece_count(elements: int) -> int:
    """Number of pieces of a sum."""
    return -(-elements // PIECE)


def bounds_of(index: int, elements: int) -> tuple[int, int]:
    """The elements [start, stop) of a piece."""
    return index * PIECE, min((index + 1) * PIECE, elements)


def pack(sums: Sums) -> Piece:
    """Pack sums into the smallest piece."""
    used = int(np.bitwise_or.reduce(sums))
    shift = (used & -used).bit_length() - 1 if used else 0
    shifted = sums >> shift
    width = _width_of(int(shifted.min()), int(shifted.max()))
    part = width & -width  # the largest part that divides both: whole words are copied faster than bytes
    raw = shifted.astype("<i8", copy=False).view(f"<u{part}").reshape(-1, _BYTES // part)
    packed = np.empty((len(sums), width // part), raw.dtype)
    for column in range(packed.shape[1]):  # long loops over columns are faster than short ones over rows
        packed[:, column] = raw[:, column]
    return Piece(shift, width, packed.tobytes())


def unpack(piece: Piece, elements: int) -> Sums:
    """The sums in a piece.

    Raises:
        InvalidRequestError: if shift, width or length do not fit.
    """
    shift, width, payload = piece.shift, piece.width, piece.payload
    if not 1 <= width <= _BYTES or not 0 <= shift < _BITS or len(payload) != width * elements:
        raise InvalidRequestError(
            "partial.piece",
            f"{len(payload)} bytes of width {width}, shifted by {shift}, for {elements} sums",
            "send whole pieces",
        )
    # eight bytes from the start of each element: its own, then the next element's, which the shifts drop
    overlapping = np.ndarray(elements, "<i8", payload + bytes(_BYTES - width), strides=(width,))
    found: Sums = overlapping << 8 * (_BYTES - width)
    found >>= 8 * (_BYTES - width)  # arithmetic shift, which extends the sign
    if _width_of(int(found.min()), int(found.max()), shift) > _BYTES:
        raise InvalidRequestError("partial.piece", f"sums shifted by {shift} pass 64 bits", "send the sums")
    found <<= shift
    return found


def _width_of(least: int, largest: int, shift: int = 0) -> int:
    """Bytes of sums in a range, shifted back."""
    bits = max(largest, -least - 1, 0).bit_length() + 1 + shift
    return -(-bits // 8)
