"""Files of blobs that are being added to a directory: written under a temporary name, synced, and renamed into place.

A writer holds a lock on its file, so that a sweep can tell files left by a killed process from files being written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from atoll.server.disk.file_locks import hold, share
from atoll.server.disk.recycling import FreeFiles
from atoll.server.disk.space import begin_writing_out, fsync_directory, is_full, write_at
from atoll.server.stores.errors import StoreFullError, StoreUnavailableError

INCOMING = "incoming"
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_WRITE_OUT_BYTES = 8 << 20


class IncomingFile:
    """A file being written in order; leaving the ``with`` block before ``show`` removes it. Not thread-safe.

    Every method raises StoreUnavailableError if the disk refuses, StoreFullError if it is full.

    Args:
        root: the directory of the blobs.
        free: files that may be overwritten.
        expected_bytes: approximate size.
    """

    def __init__(self, root: Path, free: FreeFiles, expected_bytes: int) -> None:
        self._root = root
        with on_disk(root):
            self.path, self.descriptor = _create_locked(root / INCOMING, free, expected_bytes)
        self._open = True
        self.written = 0
        self._written_out = 0

    def append(self, piece: memoryview) -> None:
        """Write the next bytes; after a StoreFullError the call may be repeated."""
        with on_disk(self.path):
            write_at(self.descriptor, piece, self.written)
            self.written += piece.nbytes
            if self.written - self._written_out >= _WRITE_OUT_BYTES:
                begin_writing_out(self.descriptor, self._written_out, self.written - self._written_out)
                self._written_out = self.written

    def sync(self) -> None:
        """Truncate the file to its written length, and make it durable."""
        with on_disk(self.path):
            os.ftruncate(self.descriptor, self.written)
            os.fsync(self.descriptor)

    def show(self, name: str) -> None:
        """Rename the synced file to its blob's name, durably, and close it."""
        folder = self._root / name[:2]
        with on_disk(self.path):
            if not folder.exists():
                folder.mkdir(exist_ok=True, mode=DIRECTORY_MODE)
                fsync_directory(self._root)
            if not share(self.descriptor, self.path):
                raise FileNotFoundError(errno.ENOENT, "its file was removed while it was written")
            self.path.replace(folder / name)
            fsync_directory(folder)
        self._close()

    def __enter__(self) -> Self:
        """The file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the file unless it has been shown."""
        if self._open:
            try:
                with on_disk(self.path):
                    self.path.unlink(missing_ok=True)
            finally:
                self._close()

    def _close(self) -> None:
        self._open = False
        os.close(self.descriptor)


@contextlib.contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Translate disk errors into the store's errors, with a remedy."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise StoreFullError("a blob cannot be written: the disk is full", where=path) from error
        remedy = "check the disk, and that the server's account may write there"
        message = f"a blob cannot be read or written: {error.strerror or type(error).__name__}"
        raise StoreUnavailableError(message, remedy, where=path) from error


def _create_locked(incoming: Path, free: FreeFiles, expected_bytes: int) -> tuple[Path, int]:
    """A new or a free file, which this process locks while it is open."""
    while True:
        path = incoming / secrets.token_hex(16)
        taken = free.take(expected_bytes, path)
        if taken is not None:
            return path, taken
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        # a sweep between opening and locking would take the lock and remove the file as abandoned
        if hold(descriptor) and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)
