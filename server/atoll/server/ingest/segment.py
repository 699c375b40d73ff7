"""A segment: the two files that an upload stream writes, payloads and their records."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from atoll.server.disk.file_locks import share
from atoll.server.disk.recycling import FreeFiles
from atoll.server.disk.space import begin_writing_out, write_at
from atoll.server.disk.stored_checksum import stored_checksum
from atoll.server.ingest.records import RECORD_BYTES, Record
from atoll.wire.chunks import ChunkHeader

DATA = ".data"
INDEX = ".index"
WRITE_OUT_BYTES = 8 << 20
"""Number of bytes after which writing to disk is started, so that the commit's fsync has little left to do."""


class Segment:
    """A segment being written. Not thread-safe: one writer, which holds the data file's lock until ``close``.

    The data file may be one of ``free``, which is overwritten from its beginning; until ``close`` it then ends with old
    bytes, which no record refers to.

    Args:
        folder: folder of both files.
        name: their common stem.
        free: files to overwrite, if any.
        expected_bytes: approximate bytes to be appended.

    Raises:
        FileExistsError: if the segment exists.
        OSError: if the disk refuses.
    """

    def __init__(self, folder: Path, name: str, free: FreeFiles | None = None, expected_bytes: int = 0) -> None:
        self.name = name
        self._index = os.open(folder / f"{name}{INDEX}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._data = _data_file(folder / f"{name}{DATA}", free, expected_bytes)
        except OSError:
            os.close(self._index)
            raise
        self._data_bytes = 0
        self._index_bytes = 0
        self._written_out = 0

    def append(self, header: ChunkHeader, payload: memoryview, max_abs: float, sum_squares: float) -> None:
        """Write a payload and then its record, so that a record always has its payload.

        Raises:
            OSError: if the disk refuses. The segment then ends at the last complete record, and the next append
                overwrites the rest.
        """
        record = Record(header, self.name, self._data_bytes, max_abs, sum_squares, stored_checksum(payload))
        write_at(self._data, payload, self._data_bytes)
        write_at(self._index, memoryview(record.pack()), self._index_bytes)
        self._data_bytes += payload.nbytes
        self._index_bytes += RECORD_BYTES
        waiting = self._data_bytes - self._written_out
        if waiting >= WRITE_OUT_BYTES:
            begin_writing_out(self._data, self._written_out, waiting)
            self._written_out = self._data_bytes

    def close(self) -> None:
        """Close both files; cut off the old bytes of a recycled data file."""
        with contextlib.suppress(OSError):  # no record refers to the rest, which is deleted with the round
            os.ftruncate(self._data, self._data_bytes)
        os.close(self._data)
        os.close(self._index)


def _data_file(path: Path, free: FreeFiles | None, expected_bytes: int) -> int:
    """A data file to write to, locked so that others may map it but not overwrite it."""
    taken = None if free is None else free.take(expected_bytes, path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600) if taken is None else taken
    if not share(descriptor, path):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "it was removed as soon as it was created", str(path))
    return descriptor
