"""Checksums of rows, which detect a bit flip on disk before it leads to a wrong sum."""

from __future__ import annotations

import struct

from blake3 import blake3

CHECKSUM_BYTES = 16


def checksum_of(*values: str | bytes | float | None) -> str:
    """A checksum (32 hex digits) over values in this order, each encoded with its type to be unambiguous.

    Integers must fit 64 bits. -0.0 is treated as 0.0, because SQLite converts one to the other.
    """
    parts: list[bytes] = []
    for value in values:
        match value:
            case None:
                parts.append(b"n")
            case str() | bytes():
                data = value.encode() if isinstance(value, str) else value
                parts += (struct.pack("<sQ", b"s" if isinstance(value, str) else b"b", len(data)), data)
            case int():
                parts.append(struct.pack("<sq", b"i", value))
            case float():
                parts.append(struct.pack("<sd", b"f", value + 0.0))
    return blake3(b"".join(parts)).hexdigest(CHECKSUM_BYTES)
