"""Quotas on the uploads of one participant for one attempt, shared by all streams of the process."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

from atoll.server.errors import LimitExceededError
from atoll.server.ingest.coordinator_api import UploadGrant
from atoll.server.ingest.records import Extent, read_extent
from atoll.wire.status import Recovery

MAX_SEGMENTS = 4096
"""Maximum number of streams of all uploads of one participant for one attempt."""
SPARE_CHUNKS = 1 << 10
TENSOR_PARTS = 1 << 8
MAX_SMALL_CHUNKS = 1 << 16
MEAN_CHUNK_BYTES = 1 << 16
MAX_QUOTAS = 1024
"""Number of quotas to keep that no stream holds."""
RECOUNT_BYTES = 64 << 20
"""Number of written bytes after which a process rereads how much other processes have stored."""


def most_chunks(tensors: int, max_bytes: int) -> int:
    """Maximum number of chunks in all uploads of one participant for one attempt.

    One chunk per 64 KiB (clients cut at 2 MiB), plus small chunks for the parts into which a silo's ranks cut each
    tensor: 256 per tensor plus 1,024, at most 65,536. Without a limit, chunks of one element each would cost the server
    a thousand times as much as the sender.

    Args:
        tensors: number of tensors in the model.
        max_bytes: maximum payload bytes of all uploads.
    """
    return min(MAX_SMALL_CHUNKS, SPARE_CHUNKS + TENSOR_PARTS * tensors) + max_bytes // MEAN_CHUNK_BYTES


@dataclass(slots=True)
class Usage:
    """Totals of one participant's uploads for one attempt, including repeated chunks.

    Attributes:
        payload_bytes: bytes of all payloads.
        chunks: their number.
        streams: number of streams that have fed each upload, by upload id; each leaves a segment.
    """

    payload_bytes: int = 0
    chunks: int = 0
    streams: Counter[str] = field(default_factory=Counter)

    def add(self, upload_id: str, stored: Extent) -> None:
        """Add the segment of one stream."""
        self.payload_bytes += stored.payload_bytes
        self.chunks += stored.chunks
        self.streams[upload_id] += 1

    def raise_to(self, other: Usage) -> None:
        """Raise each total to at least ``other``'s."""
        self.payload_bytes = max(self.payload_bytes, other.payload_bytes)
        self.chunks = max(self.chunks, other.chunks)
        self.streams |= other.streams


class Shares(NamedTuple):
    """Usage by streams of this process and of other processes."""

    mine: Usage
    elsewhere: Usage

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of both."""
        return self.mine.payload_bytes + self.elsewhere.payload_bytes

    @property
    def chunks(self) -> int:
        """Chunks of both."""
        return self.mine.chunks + self.elsewhere.chunks

    @property
    def streams(self) -> Counter[str]:
        """Streams of both."""
        return self.mine.streams + self.elsewhere.streams


class QuotaKey(NamedTuple):
    """A participant and an attempt of a round."""

    run: str
    round: int
    attempt: int
    participant: str


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """The cost of one chunk; for the first chunk of a stream, including one stream of upload ``begins``."""

    payload_bytes: int
    begins: str | None = None


class Extents:
    """Sizes of other processes' segments; a segment is read again only when its index has grown."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, Extent]] = {}

    def of(self, index: Path) -> Extent:
        """The size of the segment with this index; zero if it no longer exists.

        Raises:
            OSError: if the index cannot be read.
        """
        try:
            size = index.stat().st_size
        except FileNotFoundError:
            return Extent()
        known = self._known.get(index)
        if known is None or known[0] != size:
            known = self._known[index] = size, read_extent(index)
        return known[1]


class UploadQuota:
    """The quota of one participant for one attempt, shared by its streams in this process. Thread-safe.

    A chunk is charged before it is written, so that parallel streams cannot exceed a limit together. The usage of other
    processes is known as of the last ``recount``, so processes together may exceed a limit by the amount that each
    takes between two recounts, about ``RECOUNT_BYTES``.

    Attributes:
        counted: whether the earlier usage of this process is known.
        extents: sizes of other processes' segments.
    """

    def __init__(self) -> None:
        self.counted = False
        self.extents = Extents()
        self._lock = Lock()
        self._stored = Shares(Usage(), Usage())
        self._uncounted_bytes = 0

    def take_recount(self) -> bool:
        """Whether a recount is due; returns True to one caller only, which then makes it."""
        with self._lock:
            due = self._uncounted_bytes >= RECOUNT_BYTES
            if due:
                self._uncounted_bytes = 0
            return due

    def charge(self, charge: ChunkCost, grant: UploadGrant) -> None:
        """Charge one chunk.

        Raises:
            LimitExceededError: if it would exceed the grant; then nothing is charged.
        """
        with self._lock:
            if charge.begins is not None:
                _check_stream(self._stored.streams, charge.begins, grant)
            _check_size(self._stored, charge, grant)
            mine = self._stored.mine
            mine.payload_bytes += charge.payload_bytes
            mine.chunks += 1
            if charge.begins is not None:
                mine.streams[charge.begins] += 1
            self._uncounted_bytes += charge.payload_bytes

    def refund(self, charge: ChunkCost, *, stream: bool) -> None:
        """Refund a chunk that was not written, and its stream if it left no segment."""
        with self._lock:
            mine = self._stored.mine
            mine.payload_bytes -= charge.payload_bytes
            mine.chunks -= 1
            if stream and charge.begins is not None:
                mine.streams -= Counter([charge.begins])

    def recount(self, found: Shares) -> None:
        """Adopt the usage found on disk; charges of this process for chunks still being written stay."""
        with self._lock:
            self.counted = True
            self._stored.mine.raise_to(found.mine)
            self._stored = Shares(self._stored.mine, found.elsewhere)

    def check_stream(self, upload_id: str, grant: UploadGrant) -> None:
        """Check that another stream may belong to an upload. Raises what ``charge`` raises."""
        with self._lock:
            _check_stream(self._stored.streams, upload_id, grant)


class UploadQuotas:
    """The quotas that streams hold, and recent ones; a forgotten quota is counted again from disk."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: WeakValueDictionary[QuotaKey, UploadQuota] = WeakValueDictionary()
        self._recent: OrderedDict[QuotaKey, UploadQuota] = OrderedDict()

    def of(self, key: QuotaKey) -> UploadQuota:
        """The quota of a participant for an attempt; the caller recounts it before relying on it."""
        with self._lock:
            quota = self._recent[key] = self._held.setdefault(key, UploadQuota())
            self._recent.move_to_end(key)
            if len(self._recent) > MAX_QUOTAS:
                self._recent.popitem(last=False)
            return quota

    def forget(self, key: QuotaKey) -> None:
        """Forget a quota because segments were removed; it is counted again from disk when it is next needed."""
        with self._lock:
            self._recent.pop(key, None)


def _check_stream(streams: Counter[str], upload_id: str, grant: UploadGrant) -> None:
    """Check the limits on streams and uploads; an upload that has begun may always continue."""
    if streams.total() >= MAX_SEGMENTS:
        raise LimitExceededError(
            "upload.streams",
            f"{streams.total()} streams have fed this participant's uploads for the round",
            "send more chunks in each stream",
            recovery=Recovery.NEXT_TASK,
        )
    if upload_id not in streams and len(streams) >= grant.max_uploads:
        raise LimitExceededError(
            "upload.unfinished",
            f"this participant has begun {len(streams)} other uploads for the round",
            "continue one of them: ask for its status and send what is missing",
        )


def _check_size(stored: Shares, charge: ChunkCost, grant: UploadGrant) -> None:
    if stored.payload_bytes + charge.payload_bytes > grant.max_bytes:
        raise LimitExceededError(
            "upload.bytes",
            f"this participant's uploads for the round would hold over {grant.max_bytes} bytes",
            "ask for the upload's status and send only what is missing",
        )
    if stored.chunks >= grant.max_chunks:
        raise LimitExceededError(
            "upload.chunks",
            f"this participant's uploads for the round would have over {grant.max_chunks} chunks",
            "send larger chunks, as the welcome asks",
        )
