"""The manifest of a blob as it lies at the end of the blob's file."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from atoll.server.stores.errors import BlobDamagedError
from atoll.wire.digest import DIGEST_BYTES, BlobManifest
from atoll.wire.errors import DigestError

_MAGIC = b"ATOLBLB1"
_HEADER = struct.Struct("<QI")  # size_bytes, chunk_bytes; the chunk digests follow
_TAIL = struct.Struct("<Q8s")  # length of the manifest, magic


def pack_footer(manifest: BlobManifest) -> bytes:
    """The bytes to append to the blob's own."""
    packed = _HEADER.pack(manifest.size_bytes, manifest.chunk_bytes) + b"".join(manifest.chunk_digests)
    return packed + _TAIL.pack(len(packed), _MAGIC)


def read_footer(descriptor: int, path: Path) -> BlobManifest:
    """The manifest at the end of an open file; ``path`` is for messages. Its name is still to be compared.

    Raises:
        BlobDamagedError: if the file is cut short, or its parts do not fit together.
    """
    file_bytes = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _TAIL.size, max(0, file_bytes - _TAIL.size))
    if len(tail) != _TAIL.size:
        raise BlobDamagedError(f"a blob is cut short: it has {file_bytes} bytes", where=path)
    packed_bytes, magic = _TAIL.unpack(tail)
    body_bytes = file_bytes - _TAIL.size - packed_bytes
    if magic != _MAGIC or body_bytes < 0:
        raise BlobDamagedError("a blob is cut short or none: its footer is missing", where=path)
    manifest = _unpack(os.pread(descriptor, packed_bytes, body_bytes), path)
    if manifest.size_bytes != body_bytes:
        raise BlobDamagedError(f"a blob holds {body_bytes} bytes, its manifest says {manifest.size_bytes}", where=path)
    return manifest


def _unpack(packed: bytes, path: Path) -> BlobManifest:
    digests = packed[_HEADER.size :]
    if len(packed) < _HEADER.size or len(digests) % DIGEST_BYTES:
        raise BlobDamagedError("the manifest in a blob's footer cannot be read", where=path)
    size_bytes, chunk_bytes = _HEADER.unpack_from(packed)
    cuts = range(0, len(digests), DIGEST_BYTES)
    try:
        return BlobManifest(size_bytes, chunk_bytes, tuple(digests[cut : cut + DIGEST_BYTES] for cut in cuts))
    except DigestError as error:
        raise BlobDamagedError(f"the manifest in a blob's footer is impossible: {error}", where=path) from None
