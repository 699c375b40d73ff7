"""Protobuf fields around values that are already serialised (protobuf.dev, "Encoding")."""

from __future__ import annotations

_LENGTH_DELIMITED = 2


def varint(value: int) -> bytes:
    """A non-negative integer, 7 bits a byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def submessage(number: int, *parts: bytes) -> bytes:
    """Field ``number`` with one message as its value.

    Args:
        number: the field's number in the outer message.
        parts: the inner message's serialised fields, in any order; together each singular field at most once.
    """
    length = sum(map(len, parts))
    return b"".join((varint(number << 3 | _LENGTH_DELIMITED), varint(length), *parts))
