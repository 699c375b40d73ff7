"""The few things that all of the server asks of a disk, in one place."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from atoll.server.errors import StorageError, StorageFullError

FREE_SOME_SPACE = "free some space on the server's disk; what waits goes on then"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_RETRY_AFTER_S = 5.0


def is_full(error: OSError) -> bool:
    """Whether a disk, or the account's share of it, is full."""
    return error.errno in _FULL


def storage_error(code: str, what: str, error: OSError, *, where: object = "") -> StorageError:
    """``what`` could not be done because of ``error``; the error's own paths go to the log only."""
    place = where or f"{error}"
    if is_full(error):
        message = f"{what}: the server's disk is full"
        return StorageFullError("storage.full", message, FREE_SOME_SPACE, _RETRY_AFTER_S, where=place)
    message = f"{what}: {error.strerror or type(error).__name__}"
    return StorageError(code, message, "try again later", _RETRY_AFTER_S, where=place)


def free_bytes(path: Path) -> int:
    """What the server's account may still write on the disk of ``path``.

    Raises:
        OSError: if there is no such path.
    """
    return shutil.disk_usage(path).free


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
        OSError: if it is no directory, or cannot be opened or synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
