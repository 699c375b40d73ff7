"""Recycles files: a file that is no longer needed is overwritten by the next user.

Writing to pages that are already in memory is several times faster than writing to fresh ones, which the kernel, and on
a virtual machine also the host, must find first. So large files are passed from one round to the next instead of being
freed.

This is safe because:

- A file changes owners, and leaves this folder, only under an exclusive ``flock``. Whoever writes or maps a file holds
  at least a shared lock. A file that is still in use is unlinked instead, and stays intact for its readers.
- Only bytes that the new owner has written are read from a recycled file: a record written after the chunks has their
  positions, and every chunk is compared with its digest.
- With ``scrub``, a low-priority thread overwrites the old bytes with zeros within half a minute. They would stay on the
  disk longer if the file were only unlinked.

The total size of the files is limited, in bytes and by the free space besides them. ``disk.Room`` counts them as free
and removes them when the disk runs short. They are also removed when none was needed for a while, and when the server
stops.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from atoll.server.disk.file_locks import locked
from atoll.server.disk.space import free_bytes, write_at

log = logging.getLogger(__name__)

SMALLEST_BYTES = 1 << 20
"""Minimum bytes of a file to keep."""
MOST_BYTES = 16 << 30
"""Maximum bytes of free files in one folder."""
RESERVE_BYTES = 4 << 30
"""Files are kept only while the disk has more free space than this, and at most as many bytes as the excess."""
SCRUB_AFTER_S = 15.0
"""Seconds until an unused file is overwritten with zeros; a round that follows directly overwrites it anyway."""
KEEP_S = 600.0
"""Seconds until an unused file is removed."""
RETRY_S = 10.0
"""Seconds until a failing disk is tried again."""
_CLOSE_S = 10.0
"""Maximum seconds that a stopping server waits for a disk that does not answer."""
_CLEAN = ".clean"
_WASTE = 2
"""A file is reused only for at least 1/_WASTE of its size."""
_LOW_PRIORITY = 10
_PIECE = bytes(1 << 20)


class FreeFolder:
    """The free files of a folder, which need not exist: a ``disk.Spare``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sizes(self) -> list[tuple[int, Path]]:
        """Sizes of the files in bytes.

        Raises:
            OSError: if the disk refuses.
        """
        found = []
        with contextlib.suppress(FileNotFoundError):
            for path in self.path.iterdir():
                with contextlib.suppress(FileNotFoundError):  # taken meanwhile
                    found.append((path.stat().st_size, path))
        return found

    def stored_bytes(self) -> int:
        """Total bytes of the files. Raises what ``sizes`` raises."""
        return sum(size for size, _ in self.sizes())

    def clear(self) -> None:
        """Remove the files, except those that are being taken or scrubbed. Raises what ``sizes`` raises."""
        for _, path in self.sizes():
            _remove(path)


class FreeFiles:
    """The free files of a folder, shared by any number of threads and processes.

    Args:
        folder: created when the first file is given.
        scrub: overwrite unused files with zeros.
    """

    def __init__(self, folder: Path, *, scrub: bool) -> None:
        self._folder = FreeFolder(folder)
        self._scrub = scrub
        self._wake = threading.Condition()
        self._keeper: threading.Thread | None = None
        self._closed = False
        if self._folder.sizes():
            self._watch()

    def give(self, path: Path) -> None:
        """Accept a file that its owner no longer needs; removes it if it cannot be kept.

        Raises:
            OSError: if it can be neither kept nor removed.
        """
        if not self._keep(path):
            path.unlink(missing_ok=True)

    def take(self, wanted_bytes: int, to: Path) -> int | None:
        """Rename a free file of about that size to ``to``; returns a locked descriptor, open for reading and writing.

        It has old content and may be longer than requested. Returns None if no file fits; then nothing is at ``to``.
        """
        if wanted_bytes < SMALLEST_BYTES:
            return None
        for size, path in sorted(self._folder.sizes(), reverse=True):
            if size > _WASTE * wanted_bytes:
                continue
            descriptor = locked(path)
            if descriptor is not None and _renamed(descriptor, path, to):
                return descriptor
        return None

    def clear(self) -> None:
        """See ``FreeFolder.clear``."""
        self._folder.clear()

    def close(self) -> None:
        """Remove the free files, and keep no more."""
        with self._wake:
            self._closed = True
            keeper = self._keeper
            self._wake.notify_all()
        if keeper is not None:
            keeper.join(_CLOSE_S)
        try:
            self.clear()
        except OSError as error:
            log.warning("free files could not be removed, the next start tends them: %s", error)

    def _keep(self, path: Path) -> bool:
        try:
            descriptor = locked(path) if self._wants(path) else None
        except OSError:
            return False
        if descriptor is None:
            return False
        try:
            self._folder.path.mkdir(mode=0o700, exist_ok=True)
            path.rename(self._folder.path / secrets.token_hex(8))
        except OSError:
            return False
        finally:
            os.close(descriptor)
        self._watch()
        return True

    def _wants(self, path: Path) -> bool:
        """Whether to keep a file; if the disk runs short, all free files are removed."""
        found = path.stat()
        if self._closed or found.st_size < SMALLEST_BYTES or found.st_nlink > 1:
            return False
        beyond_reserve = free_bytes(path) - RESERVE_BYTES
        if beyond_reserve < 0:
            self.clear()
            return False
        return found.st_size + self._folder.stored_bytes() <= min(MOST_BYTES, beyond_reserve)

    def _watch(self) -> None:
        with self._wake:
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._tend, name="free-files", daemon=True)
                self._keeper.start()
            self._wake.notify()

    def _tend(self) -> None:
        """Scrub and remove files that are due until none is left; retry a disk that refuses."""
        try:
            with contextlib.suppress(OSError):  # then it scrubs at normal priority
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
            while self._tended():
                pass
        finally:
            with self._wake:
                if self._keeper is threading.current_thread():
                    self._keeper = None

    def _tended(self) -> bool:
        """Wait for the next due file and handle it; returns False, which ends the keeper, if none is left."""
        try:
            with self._wake:
                waits = list(self._waits())
                if self._closed or not waits:
                    self._keeper = None
                    return False
                self._wake.wait(min(waits))
            self._tidy()
        except OSError as error:
            log.warning("free files cannot be tended, it is tried again in %.0f s: %s", RETRY_S, error)
            with self._wake:
                if not self._closed:
                    self._wake.wait(RETRY_S)
        return True

    def _waits(self) -> Iterator[float]:
        """Seconds until the files are due."""
        for path, age_s in self._ages():
            dirty = self._scrub and path.suffix != _CLEAN
            yield max(0.0, (SCRUB_AFTER_S if dirty else KEEP_S) - age_s) + 0.01

    def _tidy(self) -> None:
        for path, age_s in self._ages():
            if age_s >= KEEP_S:
                _remove(path)
            elif self._scrub and path.suffix != _CLEAN and age_s >= SCRUB_AFTER_S:
                self._fill(path)

    def _fill(self, path: Path) -> None:
        """Overwrite a file with zeros, unless it is locked; after an interruption it is still dirty."""
        descriptor = locked(path)
        if descriptor is None:
            return
        try:
            size = os.fstat(descriptor).st_size
            for start in range(0, size, len(_PIECE)):
                if self._closed:
                    return
                write_at(descriptor, memoryview(_PIECE)[: min(len(_PIECE), size - start)], start)
            os.fsync(descriptor)  # after a power failure, the name must not exist without the zeros
            path.rename(path.with_suffix(_CLEAN))
        finally:
            os.close(descriptor)

    def _ages(self) -> Iterator[tuple[Path, float]]:
        """Seconds since each file was given, from its ``ctime``, which the renaming set."""
        now = time.time()
        for _, path in self._folder.sizes():
            with contextlib.suppress(FileNotFoundError):
                yield path, max(0.0, now - path.stat().st_ctime)


def _renamed(descriptor: int, path: Path, to: Path) -> bool:
    """Rename a locked file; unlock it if the file or the new folder no longer exists."""
    try:
        path.rename(to)
    except FileNotFoundError:
        os.close(descriptor)
        return False
    except OSError:
        os.close(descriptor)
        raise
    return True


def _remove(path: Path) -> None:
    """Unlink a free file, unless it is locked."""
    descriptor = locked(path)
    if descriptor is not None:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
