"""Immutable blobs named by their digest: models and optimiser states.

``BlobStore`` is the interface; ``DirectoryBlobStore`` (``directory_blobs``) keeps blobs as files, ``BucketBlobStore``
(``bucket_blobs``) in an object store, with such a directory as its cache. A blob becomes visible atomically, and every
byte that is read has been compared with a checksum from when it was written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from atoll.wire.digest import DEFAULT_CHUNK_BYTES, BlobManifest

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class BlobFacts:
    """Size of a blob on disk, including its manifest, and the epoch second of its last write."""

    stored_bytes: int
    made_at: float


class BlobWriter(Protocol):
    """A blob being written in order; leaving the ``with`` block without ``commit`` discards it."""

    def write(self, piece: Buffer) -> None:
        """Append any number of bytes.

        Raises:
            StoreUnavailableError: if the store is full or cannot be written.
        """
        ...

    def commit(self) -> BlobManifest:
        """Make the blob durable and visible under its manifest's name; it is no error if the blob exists.

        Raises:
            StoreUnavailableError: if that fails; the blob then does not exist.
        """
        ...

    def __enter__(self) -> Self:
        """The writer itself."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard the blob unless it was committed."""
        ...


class Blob(Protocol):
    """An open blob. Its views stay valid after it is closed. Thread-safe."""

    @property
    def manifest(self) -> BlobManifest:
        """The size, the chunk size and the digests of the chunks."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        ...

    def chunk(self, index: int) -> memoryview:
        """The bytes of one chunk, checked.

        Raises:
            BlobDamagedError: if they do not match their checksum.
            IndexError: if there is no such chunk.
        """
        ...

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes [start, stop), their chunks checked.

        Raises:
            BlobDamagedError: if they do not match their checksums.
            IndexError: if the range is not within the blob.
        """
        ...


class BlobStore(Protocol):
    """A store of blobs. Thread-safe; several processes may share one. Calls block: use threads."""

    def create(self, *, chunk_bytes: int = DEFAULT_CHUNK_BYTES, expected_bytes: int = 0) -> BlobWriter:
        """Begin a new blob. ``expected_bytes`` is its approximate size, for which the store may have space ready.

        Raises:
            StoreUnavailableError: if the place cannot be written.
        """
        ...

    def open(self, name: str) -> AbstractContextManager[Blob]:
        """Open a blob for reading.

        Raises:
            BlobMissingError: if there is no blob of that name.
            BlobDamagedError: if its size or manifest does not match its name.
        """
        ...

    def manifest(self, name: str) -> BlobManifest:
        """The manifest of a blob.

        Raises:
            BlobMissingError: if there is no blob of that name.
            BlobDamagedError: if the manifest does not match its name.
        """
        ...

    def exists(self, name: str) -> bool:
        """Whether a blob of that name exists; its bytes are not read."""
        ...

    def set_aside(self, name: str) -> bool:
        """Make a blob invisible at once, for the next ``sweep`` to remove; returns whether it is now invisible.

        During a backup it stays where it is. Existing views of it stay valid. The call is quick, so it may be made in a
        transaction, in order that no other transaction can begin to refer to the blob meanwhile.

        Raises:
            StoreUnavailableError: if the place cannot be written.
        """
        ...

    def pending(self) -> frozenset[str]:
        """Blobs set aside whose removal needs another look at the database, by ``Services.sweep_blobs``."""
        ...

    def keep(self, names: Collection[str]) -> None:
        """Make pending blobs visible again, since rows refer to them after all."""
        ...

    def sweep(self, unneeded: frozenset[str] = frozenset()) -> int:
        """Remove blobs that were set aside, and unfinished files of killed processes; returns their number.

        Args:
            unneeded: the pending ones to remove.

        Raises:
            StoreUnavailableError: if the place cannot be read or written.
        """
        ...

    def close(self) -> None:
        """Remove files kept for overwriting; later blobs are then written to new files, which costs more."""
        ...

    def facts(self, name: str) -> BlobFacts | None:
        """Size and time of a blob; None if there is no blob of that name."""
        ...

    def names(self) -> Iterator[str]:
        """The names of all blobs, in no particular order."""
        ...

    def stored(self) -> Mapping[str, BlobFacts]:
        """Size and time of every blob."""
        ...

    def problem(self) -> str:
        """The reason why blobs cannot currently be stored or read; empty if none is known."""
        ...

    def verify(self, name: str) -> None:
        """Read a whole blob and compare every chunk with its digest.

        Raises:
            BlobMissingError: if there is no blob of that name.
            BlobDamagedError: if it does not match its name.
        """
        ...
