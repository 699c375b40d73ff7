"""What a participant's uploads for one attempt take, counted by all streams of the process as they write."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

from atoll.server.errors import LimitExceededError
from atoll.server.ingest.desk import UploadGrant
from atoll.server.ingest.records import Extent, read_extent
from atoll.wire.status import Recovery

MAX_SEGMENTS = 4096
"""Streams that may feed the uploads of one participant for one attempt, one after another and together."""
SPARE_CHUNKS = 1 << 10
TENSOR_PARTS = 1 << 8
MAX_SMALL_CHUNKS = 1 << 16
MEAN_CHUNK_BYTES = 1 << 16
MAX_ACCOUNTS = 1024
"""Accounts that are remembered while no stream holds them."""
RECOUNT_BYTES = 64 << 20
"""A process looks again at what other processes have stored after so many bytes of its own."""


def most_chunks(tensors: int, max_bytes: int) -> int:
    """Chunks that the uploads of one participant for one attempt may have together.

    One per 64 KiB, where clients cut at 2 MiB; and small ones for the parts into which the ranks of a silo cut each
    tensor: 256 a tensor and 1,024 besides, 65,536 at the most. Chunks without limit, of one element each, would cost
    the server a thousand times what it costs to send them.

    Args:
        tensors: in the model.
        max_bytes: what the uploads may hold together.
    """
    return min(MAX_SMALL_CHUNKS, SPARE_CHUNKS + TENSOR_PARTS * tensors) + max_bytes // MEAN_CHUNK_BYTES


@dataclass(slots=True)
class Usage:
    """What uploads of one participant for one attempt take, repeated chunks included.

    Attributes:
        payload_bytes: bytes of all payloads.
        chunks: their number.
        streams: how many streams have fed each upload, by its id; each leaves a segment.
    """

    payload_bytes: int = 0
    chunks: int = 0
    streams: Counter[str] = field(default_factory=Counter)

    def add(self, upload_id: str, stored: Extent) -> None:
        """Count what one stream has stored."""
        self.payload_bytes += stored.payload_bytes
        self.chunks += stored.chunks
        self.streams[upload_id] += 1

    def raise_to(self, other: Usage) -> None:
        """Take the larger of both, figure by figure."""
        self.payload_bytes = max(self.payload_bytes, other.payload_bytes)
        self.chunks = max(self.chunks, other.chunks)
        self.streams |= other.streams


class Shares(NamedTuple):
    """What streams of this process have stored, and what others' have."""

    mine: Usage
    elsewhere: Usage

    @property
    def payload_bytes(self) -> int:
        """Of all."""
        return self.mine.payload_bytes + self.elsewhere.payload_bytes

    @property
    def chunks(self) -> int:
        """Of all."""
        return self.mine.chunks + self.elsewhere.chunks

    @property
    def streams(self) -> Counter[str]:
        """Of all."""
        return self.mine.streams + self.elsewhere.streams


class AccountKey(NamedTuple):
    """Whose uploads, for what."""

    run: str
    round: int
    attempt: int
    participant: str


@dataclass(frozen=True, slots=True)
class Charge:
    """What was taken for one chunk; the first one of a stream also takes a stream of its upload, ``begins``."""

    payload_bytes: int
    begins: str | None = None


class Extents:
    """How much segments of other processes hold, each read again only when its index has grown."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, Extent]] = {}

    def of(self, index: Path) -> Extent:
        """How much the segment with this index holds; nothing if it is gone.

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


class Account:
    """Shared by the streams of this process that feed uploads of one participant for one attempt. Thread-safe.

    A chunk is charged before it is written, so that streams side by side cannot pass a limit together. What other
    processes store is known as of the last ``recount``: together they may pass a limit by what each of them takes
    between two, about ``RECOUNT_BYTES``.

    Attributes:
        counted: whether what this process had stored before is known.
        extents: of the segments of other processes.
    """

    def __init__(self) -> None:
        self.counted = False
        self.extents = Extents()
        self._lock = Lock()
        self._stored = Shares(Usage(), Usage())
        self._uncounted_bytes = 0

    def take_recount(self) -> bool:
        """Whether so much was charged since the last recount that the caller, and no other, is to make another."""
        with self._lock:
            due = self._uncounted_bytes >= RECOUNT_BYTES
            if due:
                self._uncounted_bytes = 0
            return due

    def charge(self, charge: Charge, grant: UploadGrant) -> None:
        """Take what a chunk needs.

        Raises:
            LimitExceededError: if that passes what was granted; nothing is taken then.
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

    def refund(self, charge: Charge, *, stream: bool) -> None:
        """Give back what was charged for a chunk that was not written; its stream too, if that left no segment."""
        with self._lock:
            mine = self._stored.mine
            mine.payload_bytes -= charge.payload_bytes
            mine.chunks -= 1
            if stream and charge.begins is not None:
                mine.streams -= Counter([charge.begins])

    def recount(self, found: Shares) -> None:
        """Take over what was found on disk; of this process's streams, what is charged and being written stays."""
        with self._lock:
            self.counted = True
            self._stored.mine.raise_to(found.mine)
            self._stored = Shares(self._stored.mine, found.elsewhere)

    def check_stream(self, upload_id: str, grant: UploadGrant) -> None:
        """Whether one more stream may feed an upload. Raises as ``charge``."""
        with self._lock:
            _check_stream(self._stored.streams, upload_id, grant)


class Accounts:
    """The accounts that streams hold, and those used last; of one that is forgotten the disk tells all again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: WeakValueDictionary[AccountKey, Account] = WeakValueDictionary()
        self._recent: OrderedDict[AccountKey, Account] = OrderedDict()

    def of(self, key: AccountKey) -> Account:
        """The account of a participant for an attempt; the caller recounts it before relying on it."""
        with self._lock:
            account = self._recent[key] = self._held.setdefault(key, Account())
            self._recent.move_to_end(key)
            if len(self._recent) > MAX_ACCOUNTS:
                self._recent.popitem(last=False)
            return account

    def forget(self, key: AccountKey) -> None:
        """Segments were removed: once no stream holds the account, the disk is to tell what is left."""
        with self._lock:
            self._recent.pop(key, None)


def _check_stream(streams: Counter[str], upload_id: str, grant: UploadGrant) -> None:
    """An upload that was begun may always be gone on with, even if processes together began more than was granted."""
    if streams.total() >= MAX_SEGMENTS:
        raise LimitExceededError(
            "upload.streams",
            f"{streams.total()} streams have fed this participant's uploads for the round",
            "send more chunks per stream",
            recovery=Recovery.NEXT_TASK,
        )
    if upload_id not in streams and len(streams) >= grant.max_uploads:
        raise LimitExceededError(
            "upload.unfinished",
            f"this participant has begun {len(streams)} other uploads for the round",
            "go on with one of them: ask for its status and send what is missing",
        )


def _check_size(stored: Shares, charge: Charge, grant: UploadGrant) -> None:
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
