"""Checksums of bytes that this server writes to its own disk and reads back (docs/decisions/0018).

XXH3 detects accidental damage, but does not withstand an adversary. Data that comes from or goes to another machine is
named and verified by BLAKE3 (``atoll.wire.digest``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHECKSUM_BYTES = 8


def stored_checksum(payload: Buffer) -> bytes:
    """XXH3 (64 bits) of a payload, 8 bytes; releases the GIL for large ones."""
    return xxhash.xxh3_64_digest(payload)
