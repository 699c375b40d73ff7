"""The index of a segment: one fixed-size record per chunk payload, appended after the payload."""

from __future__ import annotations

import logging
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from atoll.server.disk.stored_checksum import CHECKSUM_BYTES, stored_checksum
from atoll.server.errors import CorruptDataError
from atoll.wire.chunks import ChunkHeader, ElementRange
from atoll.wire.encoding import encoding_of
from atoll.wire.errors import ChunkError

log = logging.getLogger(__name__)

# offset, block, stride, count | encoding, - | position in the data file | max |x|, sum of squares | digest |
# checksum of the payload | checksum of the record
_RECORD = struct.Struct("<QQQQ II Q dd 32s 8s 8s")
RECORD_BYTES = _RECORD.size


@dataclass(frozen=True, slots=True)
class Record:
    """One chunk of a segment.

    Attributes:
        header: the chunk's range, encoding and payload digest.
        segment: name of the segment that holds the payload.
        position: byte offset of the payload in the segment's data file.
        max_abs: largest magnitude in the payload.
        sum_squares: sum of the squares of its elements, in float64.
        checksum: of the payload, to detect damage on disk.
    """

    header: ChunkHeader
    segment: str
    position: int
    max_abs: float
    sum_squares: float
    checksum: bytes

    def pack(self) -> bytes:
        """The record as stored on disk, ``RECORD_BYTES`` long."""
        span = self.header.range
        body = _RECORD.pack(
            span.offset,
            span.block,
            span.stride,
            span.count,
            int(self.header.encoding),
            0,
            self.position,
            self.max_abs,
            self.sum_squares,
            self.header.digest,
            self.checksum,
            bytes(CHECKSUM_BYTES),
        )[:-CHECKSUM_BYTES]
        return body + stored_checksum(body)


def read_index(path: Path) -> list[Record]:
    """The intact records of a segment's index.

    A torn last record (the writer was killed) is left out. So is, with a warning, a record that was altered on disk:
    its chunk counts as not received, and is sent again.
    """
    raw = path.read_bytes()
    records = []
    for at in range(0, len(raw) - len(raw) % RECORD_BYTES, RECORD_BYTES):
        try:
            records.append(unpack_record(raw[at : at + RECORD_BYTES], path, path.stem))
        except CorruptDataError as error:
            log.warning("record %d is left out: %s", at // RECORD_BYTES, error)
    return records


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a segment: payload bytes and number of payloads."""

    payload_bytes: int = 0
    chunks: int = 0


def read_extent(path: Path) -> Extent:
    """The size of a segment, from the last complete record in its index, since payloads are consecutive.

    The data file itself may be longer. A missing index counts as empty. If the last record is damaged, the bytes are
    unknown, and the upload is refused when it is committed.

    Raises:
        OSError: if the index cannot be read.
    """
    chunks = 0
    try:
        with path.open("rb") as file:
            chunks = os.fstat(file.fileno()).st_size // RECORD_BYTES
            if not chunks:
                return Extent()
            raw = os.pread(file.fileno(), RECORD_BYTES, (chunks - 1) * RECORD_BYTES)
        last = unpack_record(raw, path, path.stem)
    except FileNotFoundError:
        return Extent()
    except CorruptDataError:
        return Extent(0, chunks)
    return Extent(last.position + last.header.payload_bytes, chunks)


def unpack_record(raw: bytes, path: Path, segment: str) -> Record:
    """One record of ``RECORD_BYTES`` bytes, read from ``path``.

    Raises:
        CorruptDataError: if it does not match its checksum or cannot be a chunk.
    """
    *fields, digest, checksum, own_checksum = _RECORD.unpack(raw)
    offset, block, stride, count, encoding, _, position, max_abs, sum_squares = fields
    if stored_checksum(raw[:-CHECKSUM_BYTES]) != own_checksum:
        raise CorruptDataError(
            "spool.corrupt",
            "a record of the upload does not match its checksum",
            "the upload must be re-sent",
            where=path,
        )
    try:
        header = ChunkHeader(ElementRange(offset, block, stride, count), encoding_of(encoding), digest)
    except ChunkError as error:
        raise CorruptDataError("spool.corrupt", str(error), "the upload must be re-sent", where=path) from None
    return Record(header, segment, position, max_abs, sum_squares, checksum)


def norm_of(records: list[Record]) -> float:
    """Euclidean norm of the update that the records make up, independent of the order in which they arrived."""
    return math.sqrt(math.fsum(record.sum_squares for record in records))
