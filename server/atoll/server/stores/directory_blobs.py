"""Blobs as files: ``<root>/<first 2 hex>/<name>``, each with its manifest as a footer.

::

    bytes of the blob | footer (``blob_footer``): manifest, checksums of the chunks

A blob is written to ``<root>/incoming``, fsynced and renamed into place (``incoming_files``), so a visible blob is
complete and durable, in one file.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from atoll.server.disk.file_locks import hold, is_at
from atoll.server.disk.recycling import FreeFiles
from atoll.server.disk.stored_checksum import stored_checksum
from atoll.server.stores.blob_builder import BlobBuilder
from atoll.server.stores.blob_footer import StoredManifest, pack_footer, read_footer
from atoll.server.stores.blobs import BlobFacts
from atoll.server.stores.errors import BlobDamagedError, BlobMissingError
from atoll.server.stores.incoming_files import DIRECTORY_MODE, FILE_MODE, INCOMING, IncomingFile, on_disk
from atoll.wire.digest import DEFAULT_CHUNK_BYTES, BlobManifest
from atoll.wire.errors import DigestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NAME = re.compile(r"[0-9a-f]{64}")
_LOCK = "kept.lock"
FREE = "free"


class DirectoryBlobStore:
    """Blobs in a directory: a ``BlobStore``. Thread-safe; several processes may use the same directory.

    Raises:
        StoreUnavailableError: if the directory cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        with on_disk(root):
            root.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
            (root / INCOMING).mkdir(exist_ok=True, mode=DIRECTORY_MODE)
            os.close(_open_lock(root))
        self._free = FreeFiles(root / FREE, scrub=False)

    def create(self, *, chunk_bytes: int = DEFAULT_CHUNK_BYTES, expected_bytes: int = 0) -> DirectoryBlobWriter:
        """Begin a new blob: see ``BlobStore``."""
        return DirectoryBlobWriter(self.incoming(expected_bytes), chunk_bytes)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[MappedBlob]:
        """Open a blob for reading: see ``BlobStore``. The file is memory-mapped and not copied."""
        with self._descriptor(name) as (descriptor, path, stored):
            mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        # The map is not closed explicitly: views of it may outlive this block, and the last one frees it.
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
        with on_disk(path):
            if not path.exists():
                return True
        with self.removing() as allowed:
            if allowed:
                self.drop(name)
            return allowed

    @contextlib.contextmanager
    def removing(self) -> Iterator[bool]:
        """A context in which no backup begins; its value is False if one is being made.

        Raises:
            StoreUnavailableError: if the directory cannot be used.
        """
        with on_disk(self.root), self._kept_lock() as lock:
            allowed = hold(lock)
            yield allowed

    def drop(self, name: str) -> None:
        """Make a file invisible, even during a backup, for ``sweep`` to remove.

        Raises:
            StoreUnavailableError: if the directory cannot be used.
        """
        path = self.path_of(name)
        with on_disk(path), contextlib.suppress(FileNotFoundError):
            path.replace(self.root / INCOMING / secrets.token_hex(16))

    def incoming(self, expected_bytes: int) -> IncomingFile:
        """A new file of about ``expected_bytes``; see ``IncomingFile``."""
        return IncomingFile(self.root, self._free, expected_bytes)

    def copy_in(self, name: str, pieces: Iterable[Buffer], expected_bytes: int = 0) -> int:
        """Store a copy of another store's file of a blob, including its footer, after comparing it with its name.

        Returns:
            Size of the file in bytes.

        Raises:
            BlobMissingError: if the name is not a valid blob name.
            BlobDamagedError: if the bytes do not match the name; then nothing is stored.
            StoreUnavailableError: if the disk refuses.
        """
        self.path_of(name)
        with self.incoming(expected_bytes) as file:
            for piece in pieces:
                file.append(memoryview(piece))
            file.sync()
            _verify_file(file, name)
            file.show(name)
            return file.written

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """A context in which no process sets a blob aside. First waits for processes that are doing so.

        Raises:
            StoreUnavailableError: if the directory cannot be used.
        """
        with on_disk(self.root), self._kept_lock() as lock:
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

    def stored(self) -> Mapping[str, BlobFacts]:
        """Sizes and times of all blobs: see ``BlobStore``."""
        found = ((name, self.facts(name)) for name in self.names())
        return {name: facts for name, facts in found if facts is not None}

    def problem(self) -> str:
        """Always empty, since the disk is checked elsewhere: see ``BlobStore``."""
        return ""

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

    def pending(self) -> frozenset[str]:
        """Always empty, since a file that was set aside has already lost its name: see ``BlobStore``."""
        return frozenset()

    def keep(self, names: Collection[str]) -> None:
        """Do nothing, since no blob is pending: see ``BlobStore``."""

    def sweep(self, unneeded: frozenset[str] = frozenset()) -> int:
        """Remove blobs set aside or left unfinished: see ``BlobStore``. Files of running writers stay."""
        del unneeded
        with on_disk(self.root / INCOMING):
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
        with on_disk(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise BlobMissingError(name) from None
            try:
                # The lock belongs to the open file, which the map keeps open, so the file is not overwritten meanwhile.
                if not (hold(descriptor, shared=True) and is_at(descriptor, path)):
                    raise BlobMissingError(name)
                stored = read_footer(descriptor, path)
                if stored.manifest.name != name:
                    raise BlobDamagedError("the manifest of a blob does not match its name", where=path)
                yield descriptor, path, stored
            finally:
                os.close(descriptor)

    def path_of(self, name: str) -> Path:
        """The path of the blob of that name, whether or not it exists.

        Raises:
            BlobMissingError: if the name is not a valid blob name.
        """
        if not _NAME.fullmatch(name):
            raise BlobMissingError(name)
        return self.root / name[:2] / name


class DirectoryBlobWriter:
    """A ``BlobWriter``; holds less than one chunk in memory. Not thread-safe.

    Args:
        file: a new file.
        chunk_bytes: the blob's chunk size.
        show: takes the finished file and its blob's name, and makes it visible.
        append: appends to the file.
    """

    def __init__(
        self,
        file: IncomingFile,
        chunk_bytes: int,
        show: Callable[[IncomingFile, str], None] = IncomingFile.show,
        append: Callable[[IncomingFile, memoryview], None] = IncomingFile.append,
    ) -> None:
        self._file = file
        self._builder = BlobBuilder(chunk_bytes)
        self._show, self._append = show, append

    def write(self, piece: Buffer) -> None:
        """Append bytes: see ``BlobWriter``."""
        self._append(self._file, memoryview(piece).cast("B"))
        self._builder.update(piece)

    def commit(self) -> BlobManifest:
        """Make the blob durable and visible: see ``BlobWriter``."""
        stored = self._builder.finish()
        self._append(self._file, memoryview(pack_footer(stored)))
        self._file.sync()
        self._show(self._file, stored.manifest.name)
        return stored.manifest

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard the blob unless it was committed."""
        self._file.__exit__(kind, error, trace)


class MappedBlob:
    """A ``Blob`` over a memory map; each chunk is compared with its checksum when it is first read."""

    def __init__(self, path: Path, stored: StoredManifest, view: memoryview) -> None:
        self._path = path
        self._view = view
        self._checksums = stored.checksums
        self._checked = bytearray(len(stored.checksums))  # one flag per chunk; a race only checks a chunk twice
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


def _open_lock(root: Path) -> int:
    """The file whose lock protects blobs from removal; if root creates it, it gets the folder's owner."""
    path = root / _LOCK
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    if os.geteuid() == 0:
        owner = root.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def _verify_file(file: IncomingFile, name: str) -> None:
    """Compare a whole file with its future name.

    Raises:
        BlobDamagedError: if it is another blob, or damaged.
    """
    stored = read_footer(file.descriptor, file.path)
    if stored.manifest.name != name:
        raise BlobDamagedError("the manifest of a blob does not match its name", where=name)
    mapped = memoryview(mmap.mmap(file.descriptor, 0, prot=mmap.PROT_READ))
    blob = MappedBlob(Path(name), stored, mapped[: stored.manifest.size_bytes])
    for index in range(stored.manifest.chunk_count):
        blob.verify_chunk(index)
