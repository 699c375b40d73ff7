"""Copies of a bucket's blobs on the local disk: a directory store with a size limit.

Nothing here is the only copy. The least recently used blobs are removed first; a blob that a reader has mapped stays
readable.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from atoll.server.stores.directory_blobs import DirectoryBlobStore, MappedBlob
from atoll.server.stores.errors import BlobDamagedError, BlobMissingError, StoreFullError
from atoll.server.stores.incoming_files import IncomingFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

log = logging.getLogger(__name__)

_LOOKS = 8
"""The directory is checked whenever 1/_LOOKS of the limit was added: each process exceeds it by less than that."""


class BlobCache:
    """A directory of blobs that holds at most ``most_bytes`` plus one more blob. Thread-safe.

    Several processes may use the directory. Methods raise StoreUnavailableError if the disk refuses.
    """

    def __init__(self, root: Path, most_bytes: int) -> None:
        self.files = DirectoryBlobStore(root)
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._unseen_bytes = most_bytes + 1  # the first blob triggers a check

    def opened(self, name: str) -> MappedBlob | None:
        """A blob, if it is cached and its footer is intact; a damaged file is removed."""
        try:
            with self.files.open(name) as blob:
                pass  # its map stays valid
        except BlobMissingError:
            return None
        except BlobDamagedError as error:
            log.warning("a cached blob is damaged, and is fetched again: %s", error.logged)
            self.files.drop(name)
            return None
        with suppress(OSError):  # removed meanwhile; the order of removal is best effort
            os.utime(self.files.path_of(name))
        return blob

    def add(self, name: str, pieces: Iterable[Buffer], expected_bytes: int = 0) -> None:
        """Store a blob's file after comparing it with its name. Raises what ``DirectoryBlobStore.copy_in`` raises.

        If the disk is full, the caller removes cached blobs and tries again.
        """
        self.added(self.files.copy_in(name, pieces, expected_bytes))

    def append(self, file: IncomingFile, piece: memoryview) -> None:
        """Append to a file; if the disk is full, remove cached blobs to make room."""
        try:
            file.append(piece)
        except StoreFullError:
            self.clear()
            file.append(piece)

    def added(self, stored_bytes: int) -> None:
        """Count a new blob; from time to time, remove others if needed: other processes also add blobs."""
        with self._lock:
            self._unseen_bytes += stored_bytes
            look = self._unseen_bytes > self._most_bytes // _LOOKS
        if look:
            self._trim(self._most_bytes)

    def clear(self) -> None:
        """Remove every blob, because the disk is full."""
        self._trim(0)

    def _trim(self, most_bytes: int) -> None:
        with self._lock:
            held = sorted(self.files.stored().items(), key=lambda one: one[1].made_at, reverse=True)
            total = 0
            for name, facts in held:
                if most_bytes < total + facts.stored_bytes and (total or not most_bytes):  # the newest one is in use
                    self.files.drop(name)
                else:
                    total += facts.stored_bytes
            self._unseen_bytes = 0
            self.files.sweep()
