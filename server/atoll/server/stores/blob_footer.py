"""The footer of a blob's file: the blob's manifest and the checksums of its chunks.

::

    size_bytes (u64) | chunk_bytes (u32) | BLAKE3 of each chunk (32) | XXH3 of each chunk (8) | XXH3 of all before (8)
    | length of all before (u64) | magic (8)
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from atoll.server.disk.stored_checksum import CHECKSUM_BYTES, stored_checksum
from atoll.server.stores.errors import BlobDamagedError
from atoll.wire.digest import DIGEST_BYTES, BlobManifest
from atoll.wire.errors import DigestError

_MAGIC = b"ATOLBLB2"
_HEADER = struct.Struct("<QI")  # size_bytes, chunk_bytes
_TAIL = struct.Struct("<Q8s")  # length of the footer before it, magic
_CHUNK_BYTES = DIGEST_BYTES + CHECKSUM_BYTES


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A blob's manifest, with the checksum of each of its chunks (8 bytes each)."""

    manifest: BlobManifest
    checksums: tuple[bytes, ...]


def pack_footer(stored: StoredManifest) -> bytes:
    """The bytes to append to the blob's own."""
    manifest = stored.manifest
    header = _HEADER.pack(manifest.size_bytes, manifest.chunk_bytes)
    packed = header + b"".join((*manifest.chunk_digests, *stored.checksums))
    packed += stored_checksum(packed)
    return packed + _TAIL.pack(len(packed), _MAGIC)


def read_footer(descriptor: int, path: Path) -> StoredManifest:
    """Read the footer at the end of an open file; ``path`` is for messages. The caller checks the manifest's name.

    Raises:
        BlobDamagedError: if the file is truncated, its footer does not match its checksum, or its parts do not fit
            together.
    """
    file_bytes = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _TAIL.size, max(0, file_bytes - _TAIL.size))
    if len(tail) != _TAIL.size:
        raise BlobDamagedError(f"a blob is truncated: it has {file_bytes} bytes", where=path)
    packed_bytes, magic = _TAIL.unpack(tail)
    body_bytes = file_bytes - _TAIL.size - packed_bytes
    if magic != _MAGIC or body_bytes < 0:
        raise BlobDamagedError("a blob is cut short or none: its footer is missing", where=path)
    stored = _unpack(os.pread(descriptor, packed_bytes, body_bytes), path)
    if stored.manifest.size_bytes != body_bytes:
        raise BlobDamagedError(
            f"a blob holds {body_bytes} bytes, its manifest says {stored.manifest.size_bytes}", where=path
        )
    return stored


def _unpack(packed: bytes, path: Path) -> StoredManifest:
    content = packed[:-CHECKSUM_BYTES]
    chunks, rest = divmod(len(content) - _HEADER.size, _CHUNK_BYTES)
    if chunks < 0 or rest or stored_checksum(content) != packed[-CHECKSUM_BYTES:]:
        raise BlobDamagedError("the manifest in a blob's footer does not match its checksum", where=path)
    size_bytes, chunk_bytes = _HEADER.unpack_from(content)
    digests_end = _HEADER.size + chunks * DIGEST_BYTES
    digests = _pieces(content[_HEADER.size : digests_end], DIGEST_BYTES)
    try:
        manifest = BlobManifest(size_bytes, chunk_bytes, digests)
    except DigestError as error:
        raise BlobDamagedError(f"the manifest in a blob's footer is invalid: {error}", where=path) from None
    return StoredManifest(manifest, _pieces(content[digests_end:], CHECKSUM_BYTES))


def _pieces(packed: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(packed[start : start + size] for start in range(0, len(packed), size))
