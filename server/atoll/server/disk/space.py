"""Free space, durable writes and storage errors, for the whole server."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from atoll.server.errors import StorageError, StorageFullError

log = logging.getLogger(__name__)

FREE_SOME_SPACE = "free some space on the server's disk; waiting work then continues"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_RETRY_AFTER_S = 5.0
_SYNC_FILE_RANGE_WRITE = 2
"""Linux: start to write the dirty pages of a range without waiting (sync_file_range(2))."""


def is_full(error: OSError) -> bool:
    """Whether a disk, or the account's quota on it, is full."""
    return error.errno in _FULL


def storage_error(code: str, what: str, error: OSError, *, where: object = "") -> StorageError:
    """The error that ``what`` failed because of ``error``, whose paths are only logged."""
    place = where or error.filename or ""
    if is_full(error):
        message = f"{what}: the server's disk is full"
        return StorageFullError("storage.full", message, FREE_SOME_SPACE, _RETRY_AFTER_S, where=place)
    message = f"{what}: {error.strerror or type(error).__name__}"
    return StorageError(code, message, "try again later", _RETRY_AFTER_S, where=place)


def free_bytes(path: Path) -> int:
    """Free bytes for the server's account on the disk of ``path``, which need not exist yet.

    Raises:
        OSError: if the disk cannot be queried.
    """
    whole = path.absolute()
    for place in (whole, *whole.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return shutil.disk_usage(place).free
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(whole))


def fsync_path(path: Path) -> None:
    """Make a file's bytes, or a directory's names, durable.

    Raises:
        OSError: if it cannot be opened or synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable.

    Raises:
        OSError: if it is not a directory, or cannot be opened or synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Spare(Protocol):
    """Unused files that are kept for overwriting; both methods raise ``OSError`` if the disk refuses."""

    def stored_bytes(self) -> int:
        """Total bytes of the files."""
        ...

    def clear(self) -> None:
        """Remove the files."""
        ...


class Room:
    """Whether the disk of the data directory has room for more work.

    Args:
        path: any path on the disk.
        reserve_bytes: bytes that must stay free, for the database and for releases.
        spare: files that count as free space: they are removed as soon as the disk runs short.
    """

    def __init__(self, path: Path, reserve_bytes: int, spare: Sequence[Spare] = ()) -> None:
        self._path = path
        self._spare = spare
        self._clearing = Lock()
        self.reserve_bytes = reserve_bytes

    @property
    def free_bytes(self) -> int:
        """Free bytes now, without spare files."""
        return free_bytes(self._path)

    def require(self, what: str, needed_bytes: int = 0) -> None:
        """Refuse work that would leave less than the reserve, even after all spare files are removed.

        Raises:
            StorageFullError: states the bytes needed and free.
        """
        if not self._shortage(needed_bytes, counting_spare=False):
            return
        self.make_room()
        shortage = self._shortage(needed_bytes, counting_spare=False)
        if shortage:
            raise StorageFullError(
                "storage.full", f"no room for {what}: {shortage}", FREE_SOME_SPACE, _RETRY_AFTER_S, where=self._path
            )

    def shortage(self, needed_bytes: int = 0) -> str:
        """The reason why ``needed_bytes`` do not fit; empty if they do, or would without spare files."""
        return self._shortage(needed_bytes, counting_spare=True)

    def make_room(self) -> None:
        """Remove spare files; waits for another thread that is doing so."""
        with self._clearing:
            for spare in self._spare:
                try:
                    spare.clear()
                except OSError as error:
                    log.warning("spare files could not be removed: %s", error)

    def _shortage(self, needed_bytes: int, *, counting_spare: bool) -> str:
        try:
            free = self.free_bytes
            if counting_spare:
                free += sum(spare.stored_bytes() for spare in self._spare)
        except OSError as error:
            return f"the free space of the disk is unknown ({error.strerror})"
        if free >= needed_bytes + self.reserve_bytes:
            return ""
        needs = f"it needs {_mib(needed_bytes)}, " if needed_bytes else ""
        return f"{needs}the server's disk has {_mib(free)} free and keeps {_mib(self.reserve_bytes)} in reserve"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def write_at(descriptor: int, payload: memoryview, position: int) -> None:
    """Write all of ``payload`` at a byte offset.

    Raises:
        OSError: if the disk refuses; a part may have been written.
    """
    while payload.nbytes:
        written = os.pwrite(descriptor, payload, position)
        payload, position = payload[written:], position + written


def begin_writing_out(descriptor: int, start: int, length: int) -> None:
    """Start writing a range to the disk, so that a later fsync has little left to wait for.

    Best effort: fails silently, since the fsync reports errors, and does nothing on systems without the call.
    """
    call = _sync_file_range()
    if call is not None and length > 0:
        call(descriptor, start, length, _SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Any:
    """The C library's function, called without the GIL; None if it does not exist."""
    found = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found
