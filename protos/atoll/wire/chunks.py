"""Chunks of an update: ranges of elements, their framing on the wire, exact coverage, and the update's digest.

The two messages that carry payloads are framed here by hand, byte-identical to what protobuf writes, so that a payload
is copied once into the outgoing message (straight from a memory map) and never on the way in.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from google.protobuf.message import DecodeError

from atoll.wire.digest import DIGEST_BYTES, MAX_CHUNK_BYTES, chunk_digest
from atoll.wire.encoding import Encoding, encoding_of, payload_bytes
from atoll.wire.errors import ChunkError, CoverageError, DigestError
from atoll.wire.fields import varint
from atoll.wire.layout import MAX_ELEMENTS
from atoll.wire.v1 import tensors_pb2, transfer_pb2

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_BLOCKS = 1 << 22
"""Most separate blocks of one update: enough for 1 GB of float32 in blocks of 64 elements."""
_HEADER = struct.Struct("<QQQQI32s")
_UPDATE_DOMAIN = b"atoll update 1\n"
_PAYLOAD_TAG = b"\x1a"  # field 3, length-delimited (UploadRequest)
_INDEX_TAG = b"\x08"  # field 1, varint (DownloadResponse)
_DOWNLOAD_PAYLOAD_TAG = b"\x12"  # field 2, length-delimited (DownloadResponse)
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, order=True, slots=True)
class ElementRange:
    """Elements ``offset + i*stride + [0, block)`` for i in [0, count).

    A contiguous run of n elements is ``ElementRange.run(offset, n)``; a tensor-parallel column shard strides.

    Raises:
        ChunkError: for an empty range, a stride below the block, or one beyond 2^48.
    """

    offset: int
    block: int
    stride: int
    count: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.block < 1 or self.count < 1 or self.stride < self.block:
            raise ChunkError(f"{self}: needs offset >= 0, block >= 1, count >= 1, stride >= block")
        if max(self.offset, self.stride, self.count) > MAX_ELEMENTS or self.stop > MAX_ELEMENTS:
            raise ChunkError(f"{self}: reaches beyond 2^48 elements")

    @classmethod
    def run(cls, offset: int, length: int) -> ElementRange:
        """``length`` consecutive elements from ``offset``."""
        return cls(offset, length, length, 1)

    @property
    def size(self) -> int:
        """Number of elements in the range."""
        return self.block * self.count

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.offset + (self.count - 1) * self.stride + self.block

    def shifted(self, by: int) -> ElementRange:
        """The range with ``by`` added to its offset."""
        return ElementRange(self.offset + by, self.block, self.stride, self.count)

    def touches(self, start: int, stop: int) -> bool:
        """Whether the range has an element of [start, stop)."""
        first = max(0, -((self.offset + self.block - 1 - start) // self.stride))  # the first block that ends past start
        return start < stop and first < self.count and self.offset + first * self.stride < stop

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after another."""
        return self.count == 1 or self.stride == self.block


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """Describes a chunk's payload: its elements, their encoding, and the payload's digest (32 bytes)."""

    range: ElementRange
    encoding: Encoding
    digest: bytes

    @property
    def payload_bytes(self) -> int:
        """The exact length that the payload must have."""
        return payload_bytes(self.encoding, self.range.size)


@dataclass(frozen=True, slots=True)
class UploadKey:
    """Names one upload of one participant for one round: see ``UploadKey`` in transfer.proto."""

    run: str
    round: int
    attempt: int
    upload_id: str
    tensor_set: str = "model"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk as received: its header, its payload (a view into the message), and the key if the message has one."""

    header: ChunkHeader
    payload: memoryview
    key: UploadKey | None

    def verify(self) -> None:
        """Check the payload against the digest in the header.

        Raises:
            DigestError: if they differ.
        """
        if chunk_digest(self.payload) != self.header.digest:
            raise DigestError(f"the chunk at element {self.header.range.offset} does not match its digest")


def header_of(element_range: ElementRange, encoding: Encoding, payload: Buffer) -> ChunkHeader:
    """The header for a payload, with its digest."""
    return ChunkHeader(element_range, encoding, chunk_digest(payload))


def frame_upload(header: ChunkHeader, payload: Buffer, key: UploadKey | None = None) -> bytes:
    """Serialise one ``UploadRequest``; the payload is copied once."""
    message = transfer_pb2.UploadRequest(chunk=header_to_proto(header))
    if key is not None:
        message.key.CopyFrom(key_to_proto(key))
    view = memoryview(payload).cast("B")
    return b"".join((message.SerializeToString(), _PAYLOAD_TAG, varint(view.nbytes), view))


def parse_upload(message: bytes) -> Chunk:
    """Read one ``UploadRequest``; the payload stays a view into ``message``.

    Raises:
        ChunkError: if it is no chunk, or the payload has not the exact length that range and encoding give.
    """
    head, payload = _split_payload(message)
    try:
        parsed = transfer_pb2.UploadRequest.FromString(head)
    except DecodeError as error:
        raise ChunkError(f"not an UploadRequest: {error}") from None
    if payload is None:
        payload = memoryview(parsed.payload)
    header = header_from_proto(parsed.chunk)
    if payload.nbytes != header.payload_bytes:
        raise ChunkError(
            f"payload of {payload.nbytes} bytes for {header.range.size} {header.encoding.name.lower()} elements: "
            f"expected {header.payload_bytes}"
        )
    return Chunk(header, payload, key_from_proto(parsed.key) if parsed.HasField("key") else None)


def frame_download(index: int, payload: Buffer) -> bytes:
    """Serialise one ``DownloadResponse``; the payload is copied once."""
    view = memoryview(payload).cast("B")
    head = _INDEX_TAG + varint(index) if index else b""  # proto3 omits a zero
    return b"".join((head, _DOWNLOAD_PAYLOAD_TAG, varint(view.nbytes), view))


def parse_download(message: bytes) -> tuple[int, memoryview]:
    """Read one ``DownloadResponse``: chunk index and payload, a view into ``message``.

    Raises:
        ChunkError: for anything else.
    """
    index, position = 0, 0
    if message[:1] == _INDEX_TAG:
        index, position = _read_varint(message, 1)
    if message[position : position + 1] == _DOWNLOAD_PAYLOAD_TAG:
        length, position = _read_varint(message, position + 1)
        if position + length == len(message):
            return index, memoryview(message)[position:]
    try:
        parsed = transfer_pb2.DownloadResponse.FromString(message)
    except DecodeError as error:
        raise ChunkError(f"not a DownloadResponse: {error}") from None
    return parsed.index, memoryview(parsed.payload)


def check_coverage(ranges: Iterable[ElementRange], size: int, first: int = 0) -> None:
    """Check that the ranges cover every element of [first, first + size) exactly once, and no other element.

    Strided ranges are expanded into their blocks; each takes 32 bytes of memory.

    Raises:
        CoverageError: names the first hole, overlap or excess element; or for more than ``MAX_BLOCKS`` blocks.
    """
    starts, stops = _blocks(list(ranges))
    if len(starts) and starts[0] < first:
        raise CoverageError(f"the update has element {int(starts[0])}; the round asks for elements from {first} on")
    before = np.concatenate(([first], stops[:-1])) if len(stops) else stops
    wrong = np.flatnonzero(starts != before)
    if len(wrong):
        start, stop, position = (int(column[wrong[0]]) for column in (starts, stops, before))
        if start > position:
            raise CoverageError(f"elements {position} to {start - 1} are missing from the update")
        raise CoverageError(f"elements {start} to {min(stop, position) - 1} are in the update twice")
    position, end = int(stops[-1]) if len(stops) else first, first + size
    if position < end:
        raise CoverageError(f"elements {position} to {end - 1} are missing from the update")
    if position > end:
        raise CoverageError(f"the update has element {position - 1}; the round asks for elements up to {end - 1}")


def check_disjoint(ranges: Iterable[ElementRange], size: int) -> None:
    """Check that the ranges have only elements of [0, size), and none twice.

    Raises:
        CoverageError: names the first element that is outside or repeated; or for more than ``MAX_BLOCKS`` blocks.
    """
    starts, stops = _blocks(list(ranges))
    twice = np.flatnonzero(starts[1:] < stops[:-1])
    if len(twice):
        raise CoverageError(f"element {int(starts[twice[0] + 1])} is named twice")
    if len(stops) and stops[-1] > size:
        raise CoverageError(f"element {int(stops[-1]) - 1} is named; the layout ends at {size - 1}")


def merged(ranges: Iterable[ElementRange]) -> list[ElementRange]:
    """The same elements in fewer ranges, sorted by offset.

    Adjacent or overlapping contiguous ranges become one; strided ranges stay as they are, without duplicates.
    """
    spans = sorted(set(ranges))
    found = [span for span in spans if not span.contiguous]
    start = stop = -1
    for span in spans:
        if not span.contiguous:
            continue
        if span.offset > stop:
            if stop > start:
                found.append(ElementRange.run(start, stop - start))
            start = span.offset
        stop = max(stop, span.stop)
    if stop > start:
        found.append(ElementRange.run(start, stop - start))
    return sorted(found)


class Held:
    """The chunks that the server holds, from its answer, which has ``merged`` ranges."""

    def __init__(self, ranges: Iterable[ElementRange]) -> None:
        spans = sorted(ranges)
        self._strided = {span for span in spans if not span.contiguous}
        runs = [span for span in spans if span.contiguous]
        self._starts = [span.offset for span in runs]
        self._stops = [span.stop for span in runs]

    def __contains__(self, chunk: ElementRange) -> bool:
        """Whether all elements of a chunk are held; a strided chunk must be listed itself."""
        if not chunk.contiguous:
            return chunk in self._strided
        place = bisect_right(self._starts, chunk.offset) - 1
        return place >= 0 and chunk.stop <= self._stops[place]


def pack_header(header: ChunkHeader) -> bytes:
    """A header as the update's digest covers it: range (four u64), encoding (u32), digest; 68 bytes."""
    span = header.range
    return _HEADER.pack(span.offset, span.block, span.stride, span.count, int(header.encoding), header.digest)


def unpack_headers(packed: bytes) -> list[ChunkHeader]:
    """The headers of concatenated ``pack_header`` results.

    Raises:
        ChunkError: for an unknown encoding or an impossible range.
    """
    rows = _HEADER.iter_unpack(packed)
    return [
        ChunkHeader(ElementRange(offset, block, stride, count), encoding_of(encoding), digest)
        for offset, block, stride, count, encoding, digest in rows
    ]


def update_digest(headers: Sequence[ChunkHeader]) -> str:
    """Hex digest of an update: BLAKE3 over its chunk headers in order of their ranges (docs/protocol.md, "Digests")."""
    hasher = blake3(_UPDATE_DOMAIN)
    for header in sorted(headers, key=lambda item: item.range):
        hasher.update(pack_header(header))
    return hasher.hexdigest()


def range_to_proto(span: ElementRange) -> tensors_pb2.ElementRange:
    """The range as its protobuf message."""
    return tensors_pb2.ElementRange(offset=span.offset, block=span.block, stride=span.stride, count=span.count)


def range_from_proto(message: tensors_pb2.ElementRange) -> ElementRange:
    """The range of a protobuf message.

    Raises:
        ChunkError: for an impossible one.
    """
    return ElementRange(message.offset, message.block, message.stride, message.count)


def header_to_proto(header: ChunkHeader) -> transfer_pb2.ChunkHeader:
    """The header as its protobuf message."""
    return transfer_pb2.ChunkHeader(
        range=range_to_proto(header.range),
        encoding=tensors_pb2.Encoding.ValueType(header.encoding),
        digest=header.digest,
    )


def header_from_proto(message: transfer_pb2.ChunkHeader) -> ChunkHeader:
    """The header of a protobuf message.

    Raises:
        ChunkError: for an unknown encoding, an impossible range, an over-long chunk or a digest of the wrong length.
    """
    header = ChunkHeader(range_from_proto(message.range), encoding_of(message.encoding), message.digest)
    if len(header.digest) != DIGEST_BYTES:
        raise ChunkError(f"chunk digest of {len(header.digest)} bytes, expected {DIGEST_BYTES}")
    if header.payload_bytes > MAX_CHUNK_BYTES:
        raise ChunkError(f"chunk of {header.payload_bytes} bytes, at most {MAX_CHUNK_BYTES}")
    return header


def key_to_proto(key: UploadKey) -> transfer_pb2.UploadKey:
    """The key as its protobuf message."""
    message = transfer_pb2.UploadKey(upload_id=key.upload_id, tensor_set=key.tensor_set)
    message.round.run, message.round.round, message.round.attempt = key.run, key.round, key.attempt
    return message


def key_from_proto(message: transfer_pb2.UploadKey) -> UploadKey:
    """The key of a protobuf message; an empty tensor set means "model"."""
    at = message.round
    return UploadKey(at.run, at.round, at.attempt, message.upload_id, message.tensor_set or "model")


def _blocks(ranges: Sequence[ElementRange]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First element, and last + 1, of every contiguous block of the ranges, in order of the first."""
    runs, strided = [span for span in ranges if span.contiguous], [span for span in ranges if not span.contiguous]
    total = len(runs) + sum(span.count for span in strided)
    if total > MAX_BLOCKS:
        raise CoverageError(f"the update comes in {total} separate blocks, at most {MAX_BLOCKS}; send larger blocks")
    starts, lengths = np.empty(total, np.int64), np.empty(total, np.int64)
    starts[: len(runs)] = [span.offset for span in runs]
    lengths[: len(runs)] = [span.size for span in runs]
    first = len(runs)
    for span in strided:
        starts[first : first + span.count] = span.offset + span.stride * np.arange(span.count)
        lengths[first : first + span.count] = span.block
        first += span.count
    order = np.argsort(starts, kind="stable")
    return starts[order], (starts + lengths)[order]


def _split_payload(message: bytes) -> tuple[bytes, memoryview | None]:
    """Split off the trailing payload field without a copy; (message, None) if the fields have another order."""
    position = 0
    while position < len(message):
        tag = message[position : position + 1]
        length, body = _read_varint(message, position + 1)
        if tag == _PAYLOAD_TAG:
            if body + length == len(message):
                return message[:position], memoryview(message)[body:]
            return message, None
        if tag not in (b"\x0a", b"\x12"):
            return message, None
        position = body + length
    return message, None


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(position, min(position + _MAX_VARINT_BYTES, len(message))):
        byte = message[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    raise ChunkError(f"a length at byte {position} of the message does not end")
