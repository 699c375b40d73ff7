"""Encodings of chunk payloads: a closed registry, each with an exact size rule and decoder.

Numbers are those of ``atoll.wire.v1.Encoding`` and are never reused. Quantised, sparse and masked encodings will take
numbers 16 and up; everything that reads a chunk goes through this registry.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atoll.wire.errors import ChunkError

if TYPE_CHECKING:
    from typing_extensions import Buffer

FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.float64]
_BF16_SHIFT = np.uint32(16)


class Encoding(IntEnum):
    """How the elements of one chunk are written; all little-endian."""

    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _STORAGE[self].itemsize

    @property
    def storage(self) -> np.dtype[np.generic]:
        """The numpy dtype of the payload as it lies; bfloat16 as its 16 bits (uint16)."""
        return _STORAGE[self]


_STORAGE: dict[Encoding, np.dtype[np.generic]] = {
    Encoding.FLOAT32: np.dtype("<f4"),
    Encoding.FLOAT64: np.dtype("<f8"),
    Encoding.FLOAT16: np.dtype("<f2"),
    Encoding.BFLOAT16: np.dtype("<u2"),
}


def encoding_of(number: int) -> Encoding:
    """The encoding with this wire number.

    Raises:
        ChunkError: for a number that this version does not know.
    """
    try:
        return Encoding(number)
    except ValueError:
        known = ", ".join(f"{item.value} ({item.name.lower()})" for item in Encoding)
        raise ChunkError(f"encoding {number} is not known here; known are {known}") from None


def payload_bytes(encoding: Encoding, count: int) -> int:
    """The exact length of a payload of ``count`` elements."""
    return encoding.itemsize * count


def as_stored(payload: Buffer, encoding: Encoding) -> npt.NDArray[np.generic]:
    """A read-only array over the payload, without a copy, in the encoding's storage dtype (shape ``(count,)``).

    Raises:
        ChunkError: if the length is not a multiple of the element size.
    """
    view = memoryview(payload)
    if view.nbytes % encoding.itemsize:
        raise ChunkError(f"payload of {view.nbytes} bytes is not a whole number of {encoding.name.lower()} elements")
    return np.frombuffer(view, dtype=encoding.storage)


def decode(payload: Buffer, encoding: Encoding) -> FloatArray:
    """The elements as float32 (float64 for FLOAT64): every encoding here widens exactly.

    Raises:
        ChunkError: if the length is not a multiple of the element size.
    """
    stored = as_stored(payload, encoding)
    if encoding is Encoding.BFLOAT16:
        return bfloat16_to_float32(stored.view(np.uint16))
    if encoding is Encoding.FLOAT64:
        return stored.view(np.float64)
    return stored.astype(np.float32, copy=False)


def encode(values: FloatArray, encoding: Encoding) -> npt.NDArray[np.generic]:
    """``values`` in the encoding's storage dtype, rounded to nearest, ties to even; no copy where none is needed.

    A finite value beyond a narrower type's range becomes infinite, which the server rejects with a clear error.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    if encoding is Encoding.BFLOAT16:
        return float32_to_bfloat16(flat.astype(np.float32, copy=False))
    with np.errstate(over="ignore"):
        return flat.astype(encoding.storage, copy=False)


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Widen bfloat16 bits, exactly; same shape."""
    return (bits.astype(np.uint32) << _BF16_SHIFT).view(np.float32)


def float32_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 to bfloat16 bits, nearest with ties to even; NaN stays NaN; same shape."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> _BF16_SHIFT) & np.uint32(1))
    narrowed = (rounded >> _BF16_SHIFT).astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        narrowed[nan] = np.uint16(0x7FC0)
    return narrowed
