"""Block-quantised payloads: each element is a small integer times a float32 scale that 128 elements share.

A payload of n elements is ``ceil(n / 128)`` scales, then the n integers: of 8 bits, or of 4 bits, two in a byte with
the lower bits first. An element's value is ``float32(scale * integer)``. docs/protocol.md gives every byte, with
examples.

The encoder's scale of a block is ``max |x| / largest``, truncated to so few bits that every product is exact: decoded
values encode to the same bytes again, and a magnitude bounded by a power of two stays bounded by it. If another encoder
chooses other scales, each product is rounded once, to nearest, ties to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from atoll.wire.errors import ChunkError

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK = 128
"""Elements that share a scale; the last block of a chunk may have fewer."""
SCALE_BYTES = 4
_INFINITY_BITS = np.uint32(0x7F800000)
_SMALLEST_SCALE = np.float32(2.0**-126)
_PIECE = 256 * BLOCK
"""Elements per step of the encoder: its intermediate arrays fit in the processor's cache."""

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockForm:
    """How a block is written: its name in errors, and the bits of its integers (8 or 4)."""

    name: str
    bits: int

    @property
    def largest(self) -> int:
        """The largest magnitude of an integer: 127 or 7. The lowest two's-complement integer is not used."""
        return (1 << (self.bits - 1)) - 1

    def integer_bytes(self, count: int) -> int:
        """Bytes of ``count`` integers."""
        return -(-count * self.bits // 8)

    def payload_bytes(self, count: int) -> int:
        """The exact length of a payload of ``count`` elements."""
        return SCALE_BYTES * blocks_of(count) + self.integer_bytes(count)

    def most_elements(self, payload_bytes: int) -> int:
        """Number of elements of the whole blocks that fit in ``payload_bytes``; at least one block."""
        return BLOCK * max(1, payload_bytes // self.payload_bytes(BLOCK))


INT8 = BlockForm("int8_block", 8)
INT4 = BlockForm("int4_block", 4)


class Parts(NamedTuple):
    """A payload's two parts, as views: float32 scales, one per block, and the integers' bytes (uint8)."""

    scales: npt.NDArray[np.float32]
    packed: npt.NDArray[np.uint8]


def blocks_of(count: int) -> int:
    """Blocks of ``count`` elements."""
    return -(-count // BLOCK)


def split(payload: Buffer, form: BlockForm, count: int) -> Parts:
    """The parts of a payload of ``count`` elements. The caller checks the integers (``check_integers``).

    Raises:
        ChunkError: for another length, a scale that is negative or not finite, or non-zero padding.
    """
    stored = np.frombuffer(memoryview(payload), np.uint8)
    if stored.size != form.payload_bytes(count):
        raise ChunkError(
            f"payload of {stored.size} bytes for {count} {form.name} elements: expected {form.payload_bytes(count)}"
        )
    border = SCALE_BYTES * blocks_of(count)
    scales, packed = stored[:border].view("<f4"), stored[border:]
    wrong = np.greater_equal(scales.view(np.uint32), _INFINITY_BITS)  # smaller bit patterns are finite and >= +0
    if wrong.any():
        at = int(wrong.argmax())
        raise ChunkError(f"the scale of {form.name} block {at} is {scales[at]}: a scale is finite and not negative")
    if count * form.bits % 8 and packed[-1] >> form.bits:
        raise ChunkError(
            f"the last byte of {count} {form.name} elements is {packed[-1]:#04x}: the bits above the element must be 0"
        )
    return Parts(scales, packed)


def check_integers(lowest: int, form: BlockForm) -> None:
    """Refuse a payload whose lowest integer is ``lowest``.

    Raises:
        ChunkError: if it is -128 or -8, which have no positive counterpart.
    """
    if lowest < -form.largest:
        raise ChunkError(f"an {form.name} element is {lowest}: allowed are -{form.largest} to {form.largest}")


def decode(payload: Buffer, form: BlockForm, count: int) -> npt.NDArray[np.float32]:
    """The elements, shape ``(count,)``; infinite where a product is too large for float32.

    Raises:
        ChunkError: as ``split`` and ``check_integers``.
    """
    scales, packed = split(payload, form, count)
    integers = packed.view(np.int8) if form.bits == 8 else _unpack(packed)[:count]
    check_integers(int(integers.min(initial=0)), form)
    values = np.empty(count, np.float32)
    whole = count // BLOCK * BLOCK
    with np.errstate(over="ignore"):
        rows = values[:whole].reshape(-1, BLOCK)
        np.multiply(integers[:whole].reshape(-1, BLOCK), scales[: whole // BLOCK, None], out=rows)
        if whole < count:
            np.multiply(integers[whole:], scales[-1], out=values[whole:])
    return values


def encode(values: npt.NDArray[np.float32], form: BlockForm) -> npt.NDArray[np.uint8]:
    """The payload of ``values``, contiguous, shape ``(n,)``; rounded to the nearest integer, ties to even.

    A block whose scale would be below the smallest normal float32 is written as zeros. A block with a value that is not
    finite gets a scale that is not finite, which the decoder refuses. Needs 2 MiB besides the payload.
    """
    payload = np.empty(form.payload_bytes(values.size), np.uint8)
    border = SCALE_BYTES * blocks_of(values.size)
    scales, packed = payload[:border].view("<f4"), payload[border:]
    for first in range(0, values.size, _PIECE):
        piece = values[first : first + _PIECE]
        rows = _rows(piece)
        of_piece = scales[first // BLOCK :][: len(rows)]
        of_piece[:] = _scales(rows, form)
        integers = _integers(rows, of_piece)
        written = _pack(integers) if form.bits == 4 else integers.view(np.uint8)
        length = form.integer_bytes(piece.size)
        packed[form.integer_bytes(first) :][:length] = written[:length]
    return payload


def _rows(piece: npt.NDArray[np.float32]) -> Rows:
    """One block per row; the last one is padded with zeros."""
    if piece.size % BLOCK == 0:
        return piece.reshape(-1, BLOCK)
    rows = np.zeros((blocks_of(piece.size), BLOCK), np.float32)
    rows.reshape(-1)[: piece.size] = piece
    return rows


def _scales(rows: Rows, form: BlockForm) -> npt.NDArray[np.float32]:
    """The largest magnitude of each row over the largest integer, its low bits cleared so that products are exact."""
    scales: npt.NDArray[np.float32] = np.abs(rows).max(axis=1) / np.float32(form.largest)
    bits = scales.view(np.uint32)
    bits &= np.uint32(0xFFFFFFFF << (form.bits - 1) & 0xFFFFFFFF)
    scales[scales < _SMALLEST_SCALE] = 0.0
    return scales


def _integers(rows: Rows, scales: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """The nearest integers, flat; 0 in rows without a usable scale.

    Quotients are float64: the quotient of two float32 numbers is never rounded to a tie, so rounding it is correct.
    """
    usable = np.isfinite(scales) & (scales > 0)
    divisors = np.where(usable, scales, np.float32(np.inf))
    with np.errstate(invalid="ignore"):
        quotients = np.divide(rows, divisors[:, None], dtype=np.float64)
    np.rint(quotients, out=quotients)
    if not usable.all():
        quotients[~usable] = 0.0
    return quotients.reshape(-1).astype(np.int8)


def _pack(integers: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Pack an even number of integers, two to a byte, the first in the lower bits."""
    pairs = integers.view("<u2")
    return ((pairs & np.uint16(0x0F)) | ((pairs >> np.uint16(4)) & np.uint16(0xF0))).astype(np.uint8)


def _unpack(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """Unpack two signed integers from each byte."""
    pairs = packed.astype("<u2")
    nibbles = ((pairs | (pairs << np.uint16(4))) & np.uint16(0x0F0F)) ^ np.uint16(0x0808)
    integers: npt.NDArray[np.int8] = nibbles.view(np.int8) - np.int8(8)
    return integers
