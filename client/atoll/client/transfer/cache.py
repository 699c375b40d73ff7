"""Downloaded models on disk: ``<state>/blobs/<name>`` when whole, ``<name>.part`` while they arrive.

Files need no fsync: whatever is found at a start is verified chunk by chunk before it is used.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.wire.digest import chunk_digest

if TYPE_CHECKING:
    from atoll.wire.digest import BlobManifest

_NAME_CHARS = 64


class PartialBlob:
    """A blob on its way in: which chunks are there and right, and where to put the next."""

    def __init__(self, path: Path, manifest: BlobManifest) -> None:
        self.manifest = manifest
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        present = min(os.fstat(self._fd).st_size, manifest.size_bytes)
        self.next_chunk = self._verified_prefix(present)

    @property
    def whole(self) -> bool:
        """Whether all chunks are in."""
        return self.next_chunk == self.manifest.chunk_count

    @property
    def received_bytes(self) -> int:
        """Bytes that are in."""
        return min(self.next_chunk * self.manifest.chunk_bytes, self.manifest.size_bytes)

    def write(self, index: int, payload: memoryview) -> None:
        """Verify and write the next chunk.

        Raises:
            DigestError: if it is not the chunk expected or does not match its digest.
        """
        if index < self.next_chunk:
            return
        if index > self.next_chunk:
            index = self.manifest.chunk_count  # out of order: verify_chunk names it
        self.manifest.verify_chunk(index, payload)
        start, _ = self.manifest.chunk_range(index)
        while payload.nbytes:
            written = os.pwrite(self._fd, payload, start)
            start, payload = start + written, payload[written:]
        self.next_chunk += 1

    def close(self) -> None:
        """Close the file; what has arrived stays for the next try."""
        os.close(self._fd)

    def _verified_prefix(self, present: int) -> int:
        """How many leading chunks of the file are whole and right."""
        for index, digest in enumerate(self.manifest.chunk_digests):
            start, stop = self.manifest.chunk_range(index)
            if stop > present or chunk_digest(os.pread(self._fd, stop - start, start)) != digest:
                return index
        return self.manifest.chunk_count


class BlobCache:
    """Keeps the last ``keep`` whole blobs, least recently used first out, and what has arrived of unfinished ones."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory
        self._keep = max(1, keep)
        self._verified: set[str] = set()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def open(self, manifest: BlobManifest) -> PartialBlob:
        """Start or go on with a blob; one found whole is whole at once.

        A file of an earlier process is verified again.
        """
        name = manifest.name
        whole = self._path(name)
        if whole.exists() and name not in self._verified:
            whole.replace(self._part(name))
        return PartialBlob(whole if whole.exists() else self._part(name), manifest)

    def finish(self, blob: PartialBlob) -> Path:
        """Give a blob that is whole its final name and drop the least recently used ones."""
        path = self._path(blob.manifest.name)
        if blob.path != path:
            blob.path.replace(path)
        os.utime(path)
        self._verified.add(blob.manifest.name)
        self._prune()
        return path

    def find(self, name: str) -> Path | None:
        """The file of a blob that this process has verified and still has."""
        path = self._path(name)
        if name not in self._verified or not path.exists():
            return None
        os.utime(path)
        return path

    @staticmethod
    def map(path: Path) -> memoryview:
        """The file's bytes as a read-only memory map (an empty file as no bytes)."""
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def _path(self, name: str) -> Path:
        if len(name) != _NAME_CHARS or not set(name) <= set("0123456789abcdef"):
            raise ValueError(f"blob name {name[:80]!r}: expected {_NAME_CHARS} hexadecimal digits")
        return self._directory / name

    def _part(self, name: str) -> Path:
        return self._path(name).with_suffix(".part")

    def _prune(self) -> None:
        """A file that is still mapped stays readable after its name is gone (POSIX)."""
        files = sorted(self._directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in [path for path in files if path.suffix == ""][self._keep :]:
            path.unlink(missing_ok=True)
            self._verified.discard(path.name)
        for path in [path for path in files if path.suffix == ".part"][1:]:
            path.unlink(missing_ok=True)
