"""Downloaded models on disk: ``<state>/blobs/<name>`` when whole, ``<name>.part`` while they arrive.

Their room is bounded by the number of files, by the policy's largest model, and by what it keeps free of the disk.
Files need no fsync: what is found at a start is verified chunk by chunk before it is used. A new model is written over
the file of the oldest one that is no longer mapped: its pages are in memory already, and writing to them is
several times faster than to fresh ones.
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
    """What an ordinary account may still write to the disk that a directory is on."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class PartialBlob:
    """A blob on its way in: which chunks are there and right, and where to put the next.

    ``require`` is called before each write with the bytes that it may take of the disk; it raises if that is too much.
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
            DiskReserveError: if the disk has no room for it.
        """
        if index != self.next_chunk:
            index = self.manifest.chunk_count  # out of order: verify_chunk refuses it
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
    """Keeps the last ``keep`` whole blobs, least recently used first out, and one unfinished one.

    Args:
        directory: where they lie; made.
        keep: whole blobs; at least 1.
        reserve_bytes: what is left free of the disk.
        free: bytes that are free on a directory's disk.
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
        """The file of a blob that this process has verified and still has."""
        path = self._path(name)
        if name not in self._verified or not path.exists():
            return None
        os.utime(path)
        return path

    def open(self, manifest: BlobManifest) -> PartialBlob:
        """Start or go on with a blob. What an earlier process left is verified again; whole, it is whole at once.

        Other unfinished blobs are dropped; so are whole ones, the oldest first, where the disk lacks room.

        Raises:
            DiskReserveError: if there is no room for it.
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
        """Give a blob that is whole its final name and drop the least recently used ones."""
        path = self._path(blob.manifest.name)
        blob.path.replace(path)
        os.utime(path)
        self._verified.add(path.name)
        self._prune()
        return path

    def map(self, path: Path) -> memoryview:
        """The file's bytes as a read-only memory map, valid for as long as anything refers to them."""
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
            if not self._is_mapped(oldest.name):  # else its room would not come free
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
        """Let the new blob take over the file of the oldest one, if there are enough others and nobody maps it."""
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
        """A file that is still mapped stays readable after its name is gone (POSIX)."""
        for path in self._newest_first("")[self._keep :]:
            path.unlink(missing_ok=True)
            self._forget(path.name)

    def _forget(self, name: str) -> None:
        self._verified.discard(name)
        self._maps.pop(name, None)


def _size(path: Path) -> int:
    """Bytes that a file takes of the disk; 0 if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return min(found.st_size, found.st_blocks * 512)
