"""Encodings of chunk payloads: a closed registry, each with an exact size rule and decoder.

Numbers are those of ``atoll.wire.v1.Encoding`` and are never reused. 1 to 15 are plain floats, 16 to 31 quantised
blocks (``blocks``); higher numbers are reserved for sparse and masked encodings. All code that reads a chunk uses this
registry.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atoll.wire import blocks
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
    INT8_BLOCK = 16
    INT4_BLOCK = 17

    @property
    def storage(self) -> np.dtype[np.generic]:
        """The numpy dtype of the payload; uint16 for bfloat16 (its bits), bytes for quantised blocks."""
        return _STORAGE.get(self, _BYTES)

    @property
    def form(self) -> blocks.BlockForm | None:
        """The form of its blocks; None for plain floats, whose elements are encoded one by one."""
        return _BLOCKS.get(self)

    @property
    def group(self) -> int:
        """Elements that are encoded together, counted from a chunk's first: 1 for plain floats."""
        return blocks.BLOCK if self in _BLOCKS else 1


_STORAGE: dict[Encoding, np.dtype[np.generic]] = {
    Encoding.FLOAT32: np.dtype("<f4"),
    Encoding.FLOAT64: np.dtype("<f8"),
    Encoding.FLOAT16: np.dtype("<f2"),
    Encoding.BFLOAT16: np.dtype("<u2"),
}
_BYTES = np.dtype(np.uint8)
_BLOCKS = {Encoding.INT8_BLOCK: blocks.INT8, Encoding.INT4_BLOCK: blocks.INT4}
PLAIN = tuple(_STORAGE)
"""The encodings whose elements are encoded one by one: any part of a payload is the payload of that part."""


def encoding_of(number: int) -> Encoding:
    """The encoding with this wire number.

    Raises:
        ChunkError: for an unknown number.
    """
    try:
        return Encoding(number)
    except ValueError:
        known = ", ".join(f"{item.value} ({item.name.lower()})" for item in Encoding)
        raise ChunkError(f"encoding {number} is unknown to this version; it knows {known}") from None


def payload_bytes(encoding: Encoding, count: int) -> int:
    """The exact length of a payload of ``count`` elements."""
    form = encoding.form
    return encoding.storage.itemsize * count if form is None else form.payload_bytes(count)


def stored_items(encoding: Encoding, count: int) -> int:
    """The length of an array of the encoding's storage dtype that holds ``count`` elements."""
    return payload_bytes(encoding, count) // encoding.storage.itemsize


def most_elements(encoding: Encoding, chunk_bytes: int) -> int:
    """Number of elements of a chunk of at most ``chunk_bytes``: whole groups, and at least one."""
    form = encoding.form
    return max(1, chunk_bytes // encoding.storage.itemsize) if form is None else form.most_elements(chunk_bytes)


def as_stored(payload: Buffer, encoding: Encoding) -> npt.NDArray[np.generic]:
    """A read-only array over the payload, without a copy, in the encoding's storage dtype.

    Raises:
        ChunkError: if the length is not a multiple of the element size.
    """
    view = memoryview(payload)
    if view.nbytes % encoding.storage.itemsize:
        raise ChunkError(f"payload of {view.nbytes} bytes is not a whole number of {encoding.name.lower()} elements")
    return np.frombuffer(view, dtype=encoding.storage)


def decode(payload: Buffer, encoding: Encoding, count: int | None = None) -> FloatArray:
    """The elements as float32 (float64 for FLOAT64), shape ``(count,)``: plain floats widen exactly.

    Args:
        payload: the bytes.
        encoding: how they are written.
        count: number of elements. Required for quantised blocks, whose payload does not determine it.

    Raises:
        ChunkError: if the length is not that of ``count`` elements, or the payload is invalid.
    """
    form = encoding.form
    if form is not None:
        return blocks.decode(payload, form, needed(count, encoding))
    stored = as_stored(payload, encoding)
    if count not in (None, stored.size):
        raise ChunkError(f"payload of {stored.size} {encoding.name.lower()} elements, expected {count}")
    if encoding is Encoding.BFLOAT16:
        return bfloat16_to_float32(stored.view(np.uint16))
    if encoding is Encoding.FLOAT64:
        return stored.view(np.float64)
    return stored.astype(np.float32, copy=False)


def encode(values: FloatArray, encoding: Encoding) -> npt.NDArray[np.generic]:
    """``values`` in the encoding's storage dtype, rounded to nearest, ties to even; copied only if necessary.

    A finite value beyond a narrower type's range becomes infinite, which the server rejects with a clear error.
    Quantised blocks begin at the first value: encode one chunk at a time, or pieces of whole ``encoding.group``s.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    form = encoding.form
    with np.errstate(over="ignore"):
        if form is not None:
            return blocks.encode(flat.astype(np.float32, copy=False), form)
        if encoding is Encoding.BFLOAT16:
            return float32_to_bfloat16(flat.astype(np.float32, copy=False))
        return flat.astype(encoding.storage, copy=False)


def as_received(values: FloatArray, encoding: Encoding) -> FloatArray:
    """What the receiver of ``encode(values, encoding)`` decodes, bit for bit; the quantisation error is the difference.

    With quantised blocks the result for consecutive chunks that are cut at multiples of ``encoding.group``, as clients
    cut them, is the same as for all of them at once.

    Raises:
        ChunkError: for quantised blocks with a value that is not finite.
    """
    return decode(encode(values, encoding).data, encoding, values.size)


def needed(count: int | None, encoding: Encoding) -> int:
    """The count, which is required.

    Raises:
        ChunkError: if it is None.
    """
    if count is None:
        raise ChunkError(f"the number of elements of an {encoding.name.lower()} payload must be given")
    return count


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
