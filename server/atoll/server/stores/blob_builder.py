"""Computes the manifest and checksums of a blob that is written piece by piece, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash
from blake3 import blake3

from atoll.server.stores.blob_footer import StoredManifest
from atoll.wire.digest import DEFAULT_CHUNK_BYTES, BlobManifest

if TYPE_CHECKING:
    from typing_extensions import Buffer


class BlobBuilder:
    """Digests a blob's pieces, which may have any size, without holding them."""

    def __init__(self, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._digest, self._checksum = blake3(), xxhash.xxh3_64()
        self._filled = 0
        self._size_bytes = 0
        self._digests: list[bytes] = []
        self._checksums: list[bytes] = []

    def update(self, piece: Buffer) -> None:
        """Append the next bytes."""
        view = memoryview(piece).cast("B")
        self._size_bytes += view.nbytes
        while view.nbytes:
            part = view[: self._chunk_bytes - self._filled]
            self._digest.update(part)
            self._checksum.update(part)
            self._filled += part.nbytes
            view = view[part.nbytes :]
            if self._filled == self._chunk_bytes:
                self._cut()

    def finish(self) -> StoredManifest:
        """The manifest and checksums of everything appended so far; the builder cannot be used again."""
        if self._filled:
            self._cut()
        manifest = BlobManifest(self._size_bytes, self._chunk_bytes, tuple(self._digests))
        return StoredManifest(manifest, tuple(self._checksums))

    def _cut(self) -> None:
        self._digests.append(self._digest.digest())
        self._checksums.append(self._checksum.digest())
        self._digest.reset()
        self._checksum.reset()
        self._filled = 0
