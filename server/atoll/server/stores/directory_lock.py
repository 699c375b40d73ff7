"""A lock that admits one server per data directory; the system releases it however the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from atoll.server.stores.errors import StoreUnavailableError

LOCK_FILE = "server.lock"
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_MAX_PID_CHARS = 20


class DirectoryLock:
    """The lock on a data directory, held until ``release`` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, directory: Path) -> DirectoryLock:
        """Lock a directory; create it if it does not exist.

        Raises:
            StoreUnavailableError: if another process has it, or the directory cannot be created or written.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_MODE)
            descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        except OSError as error:
            raise StoreUnavailableError(
                f"the data directory {directory} cannot be used: {error.strerror}",
                "choose a directory that the server's account may write to",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, _MAX_PID_CHARS, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise StoreUnavailableError(
                f"another server (process {holder or 'unknown'}) runs on the data directory {directory}",
                "stop it first, or choose another directory",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Release the lock; repeated calls do nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
