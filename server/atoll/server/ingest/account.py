"""What a participant's uploads for one attempt take, counted by all streams of the process as they write."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

from atoll.server.errors import LimitExceededError
from atoll.server.ingest.desk import UploadGrant
from atoll.wire.status import Recovery

MAX_SEGMENTS = 4096
"""Streams that may feed the uploads of one participant for one attempt, one after another and together."""
CHUNKS_FLOOR = 1 << 16
MEAN_CHUNK_BYTES = 1 << 16
"""The uploads of one participant for one attempt may have ``CHUNKS_FLOOR`` chunks and one more per so many bytes."""
RECOUNT_BYTES = 64 << 20
"""A process looks again at what other processes have stored after so many bytes of its own."""


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

    def add(self, upload_id: str, payload_bytes: int, chunks: int) -> None:
        """Count what one stream has stored."""
        self.payload_bytes += payload_bytes
        self.chunks += chunks
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


class Account:
    """Shared by the streams of this process that feed uploads of one participant for one attempt. Thread-safe.

    A chunk is charged before it is written, so that streams side by side cannot pass a limit together. What other
    processes store is known as of the last ``recount``: together they may pass a limit by what each of them takes
    between two, about ``RECOUNT_BYTES``.
    """

    def __init__(self) -> None:
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
            self._stored.mine.raise_to(found.mine)
            self._stored = Shares(self._stored.mine, found.elsewhere)

    def check_stream(self, upload_id: str, grant: UploadGrant) -> None:
        """Whether one more stream may feed an upload. Raises as ``charge``."""
        with self._lock:
            _check_stream(self._stored.streams, upload_id, grant)


class Accounts:
    """The accounts that streams hold; one that no stream holds is forgotten, for the disk tells what it told."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: WeakValueDictionary[AccountKey, Account] = WeakValueDictionary()

    def of(self, key: AccountKey) -> Account:
        """The account of a participant for an attempt; the caller recounts it before relying on it."""
        with self._lock:
            return self._held.setdefault(key, Account())


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
    most = CHUNKS_FLOOR + grant.max_bytes // MEAN_CHUNK_BYTES
    if stored.chunks >= most:
        raise LimitExceededError(
            "upload.chunks",
            f"this participant's uploads for the round would have over {most} chunks",
            "send larger chunks, as the welcome asks",
        )
