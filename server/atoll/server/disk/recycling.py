"""Files that are not needed any more and are written over by the next that need one.

Writing to pages that are in memory already is several times faster than to fresh ones, which the kernel must find, and
on a virtual machine the host too: so large files of one round go to the next instead of to the kernel.

What makes that safe:

- A file changes hands, and leaves this folder, only under an exclusive ``flock``. Who writes or maps one holds a lock,
  shared at least: a file that is still in use is unlinked instead, and its bytes stay intact for its readers.
- Nothing is read from a recycled file but what its new owner has written: chunks lie where a record written after them
  says, and every one is compared with its digest.
- With ``scrub`` the old bytes are written over with zeros within half a minute, on a thread of low priority. They
  would stay on the disk longer had the file only been unlinked.

The files are bounded in bytes, and by what is free besides them; ``disk.Room`` counts them as free and takes them when
the disk runs short. They are removed when none was wanted for a while, and when the server stops.
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
"""Smaller files are not kept."""
MOST_BYTES = 16 << 30
"""Maximum bytes of free files in one folder."""
RESERVE_BYTES = 4 << 30
"""Files are kept only while the disk has more free space than this, and at most as many bytes as it has more."""
SCRUB_AFTER_S = 15.0
"""Seconds until an unused file is overwritten with zeros; a round that follows at once overwrites it anyway."""
KEEP_S = 600.0
"""Seconds until an unused file is removed."""
RETRY_S = 10.0
"""Seconds until a disk that refused is tried again."""
_CLOSE_S = 10.0
"""The longest wait for a disk that does not answer while the server stops."""
_CLEAN = ".clean"
_WASTE = 2
"""A file is reused for at least 1/_WASTE of its size."""
_LOW_PRIORITY = 10
_PIECE = bytes(1 << 20)


class FreeFolder:
    """The free files of a folder, which need not exist: a ``disk.Spare``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sizes(self) -> list[tuple[int, Path]]:
        """Each file with its bytes.

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
        """Bytes of all files. Raises as ``sizes``."""
        return sum(size for size, _ in self.sizes())

    def clear(self) -> None:
        """Remove the files, except those that are being taken or scrubbed. Raises as ``sizes``."""
        for _, path in self.sizes():
            _remove(path)


class FreeFiles:
    """The free files of a folder, shared by any number of threads and processes.

    Args:
        folder: made when the first file is given.
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
        """Take a file that its owner no longer needs; it is removed if it cannot be kept.

        Raises:
            OSError: if it can be neither kept nor removed.
        """
        if not self._keep(path):
            path.unlink(missing_ok=True)

    def take(self, wanted_bytes: int, to: Path) -> int | None:
        """Rename a free file of about that size to ``to``; returns its locked descriptor, open for reading and writing.

        It holds old bytes and may be longer than wanted. None if there is none that fits; nothing is at ``to`` then.
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
        """Remove the free files, and keep no others."""
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
        """Whether to keep a file; if the disk runs short all free files are removed."""
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
            with contextlib.suppress(OSError):  # it scrubs at full priority then
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
            while self._tended():
                pass
        finally:
            with self._wake:
                if self._keeper is threading.current_thread():
                    self._keeper = None

    def _tended(self) -> bool:
        """Wait for the next file that is due and handle it; returns False, and ends the keeper, if none is left."""
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
        """Seconds until each file is due."""
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
            os.fsync(descriptor)  # the name must not outlive a power failure that the zeros do not
            path.rename(path.with_suffix(_CLEAN))
        finally:
            os.close(descriptor)

    def _ages(self) -> Iterator[tuple[Path, float]]:
        """Seconds since each file was given: the renaming changed its ``ctime``."""
        now = time.time()
        for _, path in self._folder.sizes():
            with contextlib.suppress(FileNotFoundError):
                yield path, max(0.0, now - path.stat().st_ctime)


def _renamed(descriptor: int, path: Path, to: Path) -> bool:
    """Rename a locked file; release it if its name or the new one's folder is gone."""
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
