"""Blobs as files: ``<root>/<first 2 hex>/<name>``, each with its manifest as a footer.

::

    bytes of the blob | footer (``blob_footer``): manifest, checksums of the chunks

A blob is written to ``<root>/incoming``, fsynced and renamed into place: a visible blob is whole and durable, and is
one file. A writer holds a lock on its file, so that ``sweep`` can tell what a killed process left behind from what a
living one is writing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from atoll.server.disk.file_locks import hold, is_at, share
from atoll.server.disk.recycling import FreeFiles
from atoll.server.disk.space import begin_writing_out, fsync_directory, is_full, write_at
from atoll.server.disk.stored_checksum import stored_checksum
from atoll.server.stores.blob_builder import BlobBuilder
from atoll.server.stores.blob_footer import StoredManifest, pack_footer, read_footer
from atoll.server.stores.blobs import BlobFacts
from atoll.server.stores.errors import BlobDamagedError, BlobMissingError, StoreFullError, StoreUnavailableError
from atoll.wire.digest import DEFAULT_CHUNK_BYTES, BlobManifest
from atoll.wire.errors import DigestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NAME = re.compile(r"[0-9a-f]{64}")
INCOMING = "incoming"
_LOCK = "kept.lock"
FREE = "free"
_WRITE_OUT_BYTES = 8 << 20
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700


class DirectoryBlobStore:
    """Blobs in a directory: a ``BlobStore``. Thread-safe; several processes may use the same directory.

    Raises:
        StoreUnavailableError: if the directory cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        with _disk(root):
            root.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_MODE)
            (root / INCOMING).mkdir(exist_ok=True, mode=_DIRECTORY_MODE)
            os.close(_open_lock(root))
        self._free = FreeFiles(root / FREE, scrub=False)

    def create(self, *, chunk_bytes: int = DEFAULT_CHUNK_BYTES, expected_bytes: int = 0) -> DirectoryBlobWriter:
        """Begin a new blob: see ``BlobStore``."""
        return DirectoryBlobWriter(self.root, chunk_bytes, self._free, expected_bytes)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[MappedBlob]:
        """Open a blob for reading: see ``BlobStore``. The file is memory-mapped, nothing is copied."""
        with self._descriptor(name) as (descriptor, path, stored):
            mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        # The map is not closed by hand: views of it may live longer than this block; the last one frees it.
        yield MappedBlob(path, stored, memoryview(mapped)[: stored.manifest.size_bytes])

    def manifest(self, name: str) -> BlobManifest:
        """The manifest of a blob: see ``BlobStore``."""
        with self._descriptor(name) as (_, _, stored):
            return stored.manifest

    def exists(self, name: str) -> bool:
        """Whether a blob of that name exists: see ``BlobStore``."""
        return self.path_of(name).exists()

    def set_aside(self, name: str) -> bool:
        """Make a blob invisible: see ``BlobStore``."""
        path = self.path_of(name)
        with _disk(path):
            if not path.exists():
                return True
        with _disk(path), self._kept_lock() as lock:
            if not hold(lock):
                return False
            with contextlib.suppress(FileNotFoundError):
                path.replace(self.root / INCOMING / secrets.token_hex(16))
        return True

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """A context in which no process sets a blob aside. Waits for a process that is doing so now.

        Raises:
            StoreUnavailableError: if the directory cannot be used.
        """
        with _disk(self.root), self._kept_lock() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def facts(self, name: str) -> BlobFacts | None:
        """Size and time of a blob: see ``BlobStore``."""
        try:
            found = self.path_of(name).stat()
        except FileNotFoundError:
            return None
        return BlobFacts(found.st_size, found.st_mtime)

    @contextlib.contextmanager
    def _kept_lock(self) -> Iterator[int]:
        descriptor = _open_lock(self.root)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def names(self) -> Iterator[str]:
        """The names of all blobs: see ``BlobStore``."""
        for path in self.root.glob("[0-9a-f][0-9a-f]/*"):
            if _NAME.fullmatch(path.name):
                yield path.name

    def verify(self, name: str) -> None:
        """Read a whole blob and compare every chunk with its digest: see ``BlobStore``."""
        with self.open(name) as blob:
            for index in range(blob.manifest.chunk_count):
                blob.verify_chunk(index)

    def sweep(self) -> int:
        """Remove blobs set aside or left unfinished: see ``BlobStore``. Files of running writers stay."""
        with _disk(self.root / INCOMING):
            return sum(self._swept(path) for path in (self.root / INCOMING).iterdir())

    def _swept(self, path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):
            with path.open("rb") as file:
                unused = hold(file.fileno())
            if unused:
                self._free.give(path)
                return True
        return False

    def close(self) -> None:
        """Remove files kept for overwriting: see ``BlobStore``."""
        self._free.close()

    @contextlib.contextmanager
    def _descriptor(self, name: str) -> Iterator[tuple[int, Path, StoredManifest]]:
        path = self.path_of(name)
        with _disk(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise BlobMissingError(name) from None
            try:
                # The lock belongs to the open file, which the map keeps open: the file is not overwritten meanwhile.
                if not (hold(descriptor, shared=True) and is_at(descriptor, path)):
                    raise BlobMissingError(name)
                stored = read_footer(descriptor, path)
                if stored.manifest.name != name:
                    raise BlobDamagedError("the manifest of a blob does not match its name", where=path)
                yield descriptor, path, stored
            finally:
                os.close(descriptor)

    def path_of(self, name: str) -> Path:
        """The path of the blob of that name, whether it exists or not.

        Raises:
            BlobMissingError: if nothing can have that name.
        """
        if not _NAME.fullmatch(name):
            raise BlobMissingError(name)
        return self.root / name[:2] / name


class DirectoryBlobWriter:
    """A ``BlobWriter``; holds less than one chunk in memory. Not thread-safe."""

    def __init__(self, root: Path, chunk_bytes: int, free: FreeFiles, expected_bytes: int) -> None:
        self._root = root
        self._builder = BlobBuilder(chunk_bytes)
        with _disk(root):
            self._path, self._descriptor = _create_locked(root / INCOMING, free, expected_bytes)
        self._open = True
        self._written = 0
        self._written_out = 0

    def write(self, piece: Buffer) -> None:
        """Append bytes: see ``BlobWriter``."""
        with _disk(self._path):
            self._append(memoryview(piece).cast("B"))
        self._builder.update(piece)

    def commit(self) -> BlobManifest:
        """Make the blob durable and visible: see ``BlobWriter``."""
        stored = self._builder.finish()
        manifest = stored.manifest
        folder = self._root / manifest.name[:2]
        with _disk(self._path):
            self._append(memoryview(pack_footer(stored)))
            os.ftruncate(self._descriptor, self._written)
            os.fsync(self._descriptor)
            if not folder.exists():
                folder.mkdir(exist_ok=True, mode=_DIRECTORY_MODE)
                fsync_directory(self._root)
            if not share(self._descriptor, self._path):
                raise FileNotFoundError(errno.ENOENT, "its file was removed while it was written")
            self._path.replace(folder / manifest.name)
            fsync_directory(folder)
        self._close()
        return manifest

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was not committed."""
        if self._open:
            try:
                with _disk(self._path):
                    self._path.unlink(missing_ok=True)
            finally:
                self._close()

    def _append(self, piece: memoryview) -> None:
        write_at(self._descriptor, piece, self._written)
        self._written += piece.nbytes
        if self._written - self._written_out >= _WRITE_OUT_BYTES:
            begin_writing_out(self._descriptor, self._written_out, self._written - self._written_out)
            self._written_out = self._written

    def _close(self) -> None:
        self._open = False
        os.close(self._descriptor)


class MappedBlob:
    """A ``Blob`` over a memory map; each chunk is compared with its checksum when it is first asked for."""

    def __init__(self, path: Path, stored: StoredManifest, view: memoryview) -> None:
        self._path = path
        self._view = view
        self._checksums = stored.checksums
        self._checked = bytearray(len(stored.checksums))  # one flag a chunk; a race only checks one twice
        self.manifest = stored.manifest
        self.size_bytes = stored.manifest.size_bytes

    def chunk(self, index: int) -> memoryview:
        """The bytes of one chunk, checked: see ``Blob``."""
        view = self._chunk_view(index)
        if not self._checked[index]:
            if stored_checksum(view) != self._checksums[index]:
                raise self._damaged(index, f"chunk {index} does not match its checksum")
            self._checked[index] = True
        return view

    def verify_chunk(self, index: int) -> None:
        """Compare one chunk with its digest.

        Raises:
            BlobDamagedError: if it does not match.
        """
        try:
            self.manifest.verify_chunk(index, self._chunk_view(index))
        except DigestError as error:
            raise self._damaged(index, str(error)) from None

    def _chunk_view(self, index: int) -> memoryview:
        if not 0 <= index < self.manifest.chunk_count:
            raise IndexError(f"chunk {index} of a blob with {self.manifest.chunk_count}")
        return self._view[slice(*self.manifest.chunk_range(index))]

    def _damaged(self, index: int, what: str) -> BlobDamagedError:
        start, stop = self.manifest.chunk_range(index)
        return BlobDamagedError(f"bytes {start} to {stop - 1} of a blob: {what}", where=self._path)

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes [start, stop), checked: see ``Blob``."""
        if not 0 <= start <= stop <= self.manifest.size_bytes:
            raise IndexError(f"bytes [{start}, {stop}) of a blob with {self.manifest.size_bytes}")
        if start < stop:
            cut = self.manifest.chunk_bytes
            for index in range(start // cut, (stop - 1) // cut + 1):
                self.chunk(index)
        return self._view[start:stop]


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Translate disk errors into the store's errors, with a remedy."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise StoreFullError("a blob cannot be written: the disk is full", where=path) from error
        remedy = "check the disk, and that the server's account may write there"
        message = f"a blob cannot be read or written: {error.strerror or type(error).__name__}"
        raise StoreUnavailableError(message, remedy, where=path) from error


def _open_lock(root: Path) -> int:
    """The file whose lock keeps blobs; if root makes it, it is given to the folder's owner."""
    path = root / _LOCK
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    if os.geteuid() == 0:
        owner = root.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def _create_locked(incoming: Path, free: FreeFiles, expected_bytes: int) -> tuple[Path, int]:
    """A new or a free file, which this process has locked while it is open."""
    while True:
        path = incoming / secrets.token_hex(16)
        taken = free.take(expected_bytes, path)
        if taken is not None:
            return path, taken
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        # A sweep between opening and locking takes the lock and removes the file as abandoned.
        if hold(descriptor) and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)
