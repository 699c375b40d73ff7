"""Names and digests of blobs: a two-level BLAKE3 tree.

A blob is cut into chunks of ``chunk_bytes``. Each chunk has a digest; the blob's name is the digest of a canonical
header and all chunk digests. So chunks can be verified one by one and in parallel, a download resumes at any chunk, and
any replica or cache can serve them (docs/protocol.md, "Digests").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from atoll.wire.errors import DigestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

DIGEST_BYTES = 32
DEFAULT_CHUNK_BYTES = 2 << 20
MIN_CHUNK_BYTES = 1 << 10
MAX_CHUNK_BYTES = 4 << 20
INLINE_BYTES = 32 << 10
"""A model up to this size is part of the invitation, an update's payload up to this size part of the report."""
_BLOB_DOMAIN = b"atoll blob 1\n"


def chunk_digest(payload: Buffer) -> bytes:
    """BLAKE3 of one chunk's payload, 32 bytes."""
    return blake3(payload).digest()


@dataclass(frozen=True)
class BlobManifest:
    """Size, chunk size and chunk digests of a blob.

    Raises:
        DigestError: for a chunk size out of bounds, or if the number of digests does not match the size.
    """

    size_bytes: int
    chunk_bytes: int
    chunk_digests: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not MIN_CHUNK_BYTES <= self.chunk_bytes <= MAX_CHUNK_BYTES:
            raise DigestError(f"chunk_bytes {self.chunk_bytes}: allowed are {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}")
        if self.size_bytes < 0:
            raise DigestError(f"size_bytes {self.size_bytes} is negative")
        expected = -(-self.size_bytes // self.chunk_bytes)
        if len(self.chunk_digests) != expected:
            raise DigestError(
                f"{len(self.chunk_digests)} chunk digests for {self.size_bytes} bytes in chunks of "
                f"{self.chunk_bytes}: expected {expected}"
            )
        if any(len(digest) != DIGEST_BYTES for digest in self.chunk_digests):
            raise DigestError(f"a chunk digest is not {DIGEST_BYTES} bytes long")

    @property
    def name(self) -> str:
        """The blob's name: hex BLAKE3 over the domain, size, chunk size and chunk digests."""
        hasher = blake3(_BLOB_DOMAIN + struct.pack("<QI", self.size_bytes, self.chunk_bytes))
        hasher.update(b"".join(self.chunk_digests))
        return hasher.hexdigest()

    @property
    def chunk_count(self) -> int:
        """Number of chunks of the blob."""
        return len(self.chunk_digests)

    def chunk_range(self, index: int) -> tuple[int, int]:
        """The bytes [start, stop) of chunk ``index``."""
        start = index * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.size_bytes)

    def verify_chunk(self, index: int, payload: Buffer) -> None:
        """Check one chunk.

        Raises:
            DigestError: if the blob has no such chunk, or length or digest differ.
        """
        if not 0 <= index < self.chunk_count:
            raise DigestError(f"the blob has no chunk {index}: it has {self.chunk_count}")
        start, stop = self.chunk_range(index)
        view = memoryview(payload)
        if view.nbytes != stop - start:
            raise DigestError(f"chunk {index} has {view.nbytes} bytes, expected {stop - start}")
        if chunk_digest(view) != self.chunk_digests[index]:
            raise DigestError(f"chunk {index} of blob {self.name[:16]} does not match its digest")

    @classmethod
    def of_chunks(cls, chunks: Iterable[Buffer], chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> BlobManifest:
        """The manifest of a blob given as consecutive chunks, each but the last of ``chunk_bytes`` bytes."""
        size_bytes = 0
        digests = []
        for chunk in chunks:
            size_bytes += memoryview(chunk).nbytes
            digests.append(chunk_digest(chunk))
        return cls(size_bytes, chunk_bytes, tuple(digests))

    @classmethod
    def of_buffer(cls, buffer: Buffer, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> BlobManifest:
        """The manifest of a blob in memory or in a memory map; nothing is copied."""
        view = memoryview(buffer).cast("B")
        cuts = range(0, view.nbytes, chunk_bytes)
        return cls.of_chunks((view[cut : cut + chunk_bytes] for cut in cuts), chunk_bytes)
