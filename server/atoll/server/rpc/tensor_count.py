"""Limits on the tensors of a serialised request, checked before it is parsed.

An empty tensor takes two bytes in the message and about 60 in memory, a dimension one byte and over 20, so 4 MiB would
become 100 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from atoll.server.errors import InvalidRequestError
from atoll.wire.layout import MAX_DIMENSIONS, MAX_NAME_BYTES, MAX_TENSORS

MAX_TENSOR_BYTES = MAX_NAME_BYTES + 11 * MAX_DIMENSIONS + 64
"""Maximum bytes that describe a tensor: name, type, and dimensions of at most ten bytes and a tag each."""
_LAYOUT = 3  # SubmitRunRequest.layout
_TENSORS = 1  # Layout.tensors
_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
_MAX_SHIFT = 63


def check_tensor_count(raw: bytes) -> None:
    """Scan a ``SubmitRunRequest`` up to the first violation; the parser refuses anything that is not protobuf.

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
    """Start and end (exclusive) of each length-delimited field with the number ``wanted``."""
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
    """A number and the position after it; 0 and ``stop`` if it does not end."""
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
