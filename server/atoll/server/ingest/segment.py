"""The file pair that one upload stream writes: payloads in one, a record of each in the other."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.server.ingest.records import RECORD_BYTES, Record
from atoll.wire.chunks import ChunkHeader

DATA = ".data"
INDEX = ".index"


class Segment:
    """A segment being written. Not thread-safe: one stream, one writer."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._data = os.open(folder / f"{name}{DATA}", flags, 0o600)
        try:
            self._index = os.open(folder / f"{name}{INDEX}", flags, 0o600)
        except OSError:
            os.close(self._data)
            raise
        self._data_bytes = 0
        self._index_bytes = 0

    def append(self, header: ChunkHeader, payload: memoryview, max_abs: float, sum_squares: float) -> None:
        """Write a payload and then its record, so that a record always has its payload.

        Raises:
            OSError: if the disk refuses; the segment then ends at the last whole record, and the next append overwrites
                what was left half-way.
        """
        record = Record(header, self.name, self._data_bytes, max_abs, sum_squares)
        _write_at(self._data, payload, self._data_bytes)
        _write_at(self._index, memoryview(record.pack()), self._index_bytes)
        self._data_bytes += payload.nbytes
        self._index_bytes += RECORD_BYTES

    def close(self) -> None:
        """Close both files."""
        os.close(self._data)
        os.close(self._index)


def _write_at(descriptor: int, payload: memoryview, position: int) -> None:
    while payload.nbytes:
        written = os.pwrite(descriptor, payload, position)
        payload, position = payload[written:], position + written
