"""Downloaded models on disk: ``<state>/blobs/<name>`` when complete, ``<name>.part`` during the download.

The number of files, the policy's largest model and its free-disk reserve bound the disk space. Files need no fsync:
after a start, existing files are verified chunk by chunk before use. A new model overwrites the file of the oldest one
that is no longer mapped, because writing to cached pages is several times faster than to fresh ones.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.client.errors import DiskReserveError
from atoll.wire.digest import chunk_digest

if TYPE_CHECKING:
    from atoll.wire.digest import BlobManifest

_NAME_CHARS = 64
_HEX = frozenset("0123456789abcdef")
_PART = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def free_bytes(directory: Path) -> int:
    """Free bytes for unprivileged users on the disk of a directory."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class PartialBlob:
    """A blob during its download: the verified chunks, and the position of the next one.

    ``require`` is called before each write with the bytes that the write may add to the disk; it raises to refuse it.
    """

    def __init__(self, path: Path, manifest: BlobManifest, require: Callable[[int], object] = lambda _: None) -> None:
        self.manifest = manifest
        self.path = path
        self._require = require
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        present = os.fstat(self._fd).st_size
        if present > manifest.size_bytes:
            os.ftruncate(self._fd, manifest.size_bytes)
        self.next_chunk = self._verified_prefix(min(present, manifest.size_bytes))

    @property
    def whole(self) -> bool:
        """Whether all chunks have been received."""
        return self.next_chunk == self.manifest.chunk_count

    @property
    def received_bytes(self) -> int:
        """Bytes that have been received."""
        return min(self.next_chunk * self.manifest.chunk_bytes, self.manifest.size_bytes)

    def write(self, index: int, payload: memoryview) -> None:
        """Verify and write the next chunk.

        Raises:
            DigestError: if it is not the expected chunk or does not match its digest.
            DiskReserveError: if the disk has no room for it.
        """
        if index != self.next_chunk:
            index = self.manifest.chunk_count  # an index out of order, which verify_chunk refuses
        self.manifest.verify_chunk(index, payload)
        start, stop = self.manifest.chunk_range(index)
        self._require(max(0, stop - os.fstat(self._fd).st_size))
        while payload.nbytes:
            try:
                written = os.pwrite(self._fd, payload, start)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                raise DiskReserveError("the disk of the participant is full") from error
            start, payload = start + written, payload[written:]
        self.next_chunk += 1

    def close(self) -> None:
        """Close the file; the received chunks stay for the next try."""
        os.close(self._fd)

    def _verified_prefix(self, present: int) -> int:
        """Number of leading chunks of the file that are complete and match their digests."""
        for index, digest in enumerate(self.manifest.chunk_digests):
            start, stop = self.manifest.chunk_range(index)
            if stop > present or chunk_digest(os.pread(self._fd, stop - start, start)) != digest:
                return index
        return self.manifest.chunk_count


class BlobCache:
    """Keeps the ``keep`` most recently used complete blobs, and one unfinished blob.

    Args:
        directory: of the files; created if necessary.
        keep: number of complete blobs; at least 1.
        reserve_bytes: bytes of the disk to leave free.
        free: returns the free bytes on a directory's disk.
    """

    def __init__(
        self, directory: Path, keep: int, reserve_bytes: int = 0, free: Callable[[Path], int] = free_bytes
    ) -> None:
        self._directory = directory
        self._keep = max(1, keep)
        self._reserve_bytes, self._free = reserve_bytes, free
        self._verified: set[str] = set()
        self._maps: dict[str, weakref.ref[mmap.mmap]] = {}
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def find(self, name: str) -> Path | None:
        """The file of a blob that this process has verified; None if it is not in the cache."""
        path = self._path(name)
        if name not in self._verified or not path.exists():
            return None
        os.utime(path)
        return path

    def open(self, manifest: BlobManifest) -> PartialBlob:
        """Begin or resume a download. Chunks that an earlier process left are verified again.

        Other unfinished blobs are deleted, and if the disk lacks room, complete ones too, the oldest first.

        Raises:
            DiskReserveError: if the disk has no room for it.
        """
        path = self._path(manifest.name)
        part = path.with_suffix(_PART)
        for other in self._newest_first(_PART):
            if other != part:
                other.unlink(missing_ok=True)
        if path.exists():
            path.replace(part)
        elif not part.exists():
            self._recycle(part)
        self._make_room(manifest.size_bytes - _size(part))
        return PartialBlob(part, manifest, self._require)

    def finish(self, blob: PartialBlob) -> Path:
        """Give a complete blob its final name, and delete the least recently used ones."""
        path = self._path(blob.manifest.name)
        blob.path.replace(path)
        os.utime(path)
        self._verified.add(path.name)
        self._prune()
        return path

    def map(self, path: Path) -> memoryview:
        """The file's bytes as a read-only memory map, valid for as long as it is referenced."""
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return memoryview(b"")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps[path.name] = weakref.ref(mapped)
        return memoryview(mapped)

    def _path(self, name: str) -> Path:
        if len(name) != _NAME_CHARS or not _HEX.issuperset(name):
            raise ValueError(f"blob name {name[:80]!r}: expected {_NAME_CHARS} hexadecimal digits")
        return self._directory / name

    def _newest_first(self, suffix: str) -> list[Path]:
        files = [path for path in self._directory.iterdir() if path.suffix == suffix]
        return sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True)

    def _make_room(self, needed: int) -> None:
        for oldest in reversed(self._newest_first("")):
            if needed + self._reserve_bytes <= self._free(self._directory):
                return
            if not self._is_mapped(oldest.name):  # deleting a mapped file would not free its space
                oldest.unlink(missing_ok=True)
                self._forget(oldest.name)
        self._require(needed)

    def _require(self, needed: int) -> None:
        if needed > 0 and needed + self._reserve_bytes > self._free(self._directory):
            raise DiskReserveError(
                f"policy: {needed} bytes to download would leave less than {self._reserve_bytes} bytes of the disk "
                "free (min_free_disk_bytes)"
            )

    def _recycle(self, part: Path) -> None:
        """Reuse the file of the oldest blob for the new one, if there are enough others and it is not mapped."""
        whole = self._newest_first("")
        if len(whole) < self._keep or len(whole) < 2:
            return
        oldest = whole[-1]
        if not self._is_mapped(oldest.name):
            self._forget(oldest.name)
            oldest.replace(part)

    def _is_mapped(self, name: str) -> bool:
        mapped = self._maps.get(name)
        return mapped is not None and mapped() is not None

    def _prune(self) -> None:
        """Delete the least recently used files; a mapped file stays readable after that (POSIX)."""
        for path in self._newest_first("")[self._keep :]:
            path.unlink(missing_ok=True)
            self._forget(path.name)

    def _forget(self, name: str) -> None:
        self._verified.discard(name)
        self._maps.pop(name, None)


def _size(path: Path) -> int:
    """Bytes that a file takes on the disk; 0 if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return min(found.st_size, found.st_blocks * 512)
