"""How many tensors a serialised request names, and how long they are, told before it is parsed.

An empty tensor takes two bytes of a message and some sixty of memory, a side of a shape one and over twenty: four
mebibytes would become a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator

from atoll.server.errors import InvalidRequestError
from atoll.wire.layout import MAX_DIMENSIONS, MAX_NAME_BYTES, MAX_TENSORS

MAX_TENSOR_BYTES = MAX_NAME_BYTES + 11 * MAX_DIMENSIONS + 64
"""The longest description of a tensor: its name, its sides of at most ten bytes and a tag each, its type."""
_LAYOUT = 3  # SubmitRunRequest.layout
_TENSORS = 1  # Layout.tensors
_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
_MAX_SHIFT = 63


def check_tensor_count(raw: bytes) -> None:
    """Look through a ``SubmitRunRequest``; what is not protobuf is left to the parser. Stops at the first too many.

    Raises:
        InvalidRequestError: for more than ``MAX_TENSORS`` tensors, or one of more than ``MAX_TENSOR_BYTES``.
    """
    count = 0
    for start, stop in _fields(raw, 0, len(raw), _LAYOUT):
        for first, last in _fields(raw, start, stop, _TENSORS):
            count += 1
            if last - first > MAX_TENSOR_BYTES:
                raise InvalidRequestError(
                    "job.tensors", f"tensor {count} is described in {last - first} bytes", "shorten its name or shape"
                )
            if count > MAX_TENSORS:
                raise InvalidRequestError(
                    "job.tensors", f"the layout has over {MAX_TENSORS} tensors", "join small tensors into larger ones"
                )


def _fields(raw: bytes, position: int, stop: int, wanted: int) -> Iterator[tuple[int, int]]:
    """First byte and last byte + 1 of each length-delimited field of that number."""
    while position < stop:
        tag, position = _varint(raw, position, stop)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, position = _varint(raw, position, stop)
            if tag >> 3 == wanted:
                yield position, min(position + length, stop)
            position += length
        elif kind == 0:
            _, position = _varint(raw, position, stop)
        elif kind in _FIXED_BYTES:
            position += _FIXED_BYTES[kind]
        else:
            return


def _varint(raw: bytes, position: int, stop: int) -> tuple[int, int]:
    """A number and what comes after it; where it does not end, the end."""
    value = 0
    for shift in range(0, _MAX_SHIFT + 1, 7):
        if position >= stop:
            break
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    return 0, stop
