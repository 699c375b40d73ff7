"""What a participant's uploads for one attempt take, counted by all streams of the process as they write."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

from atoll.server.errors import LimitExceededError
from atoll.server.ingest.desk import UploadGrant

MAX_SEGMENTS = 4096
"""Streams that may feed the uploads of one participant for one attempt, one after another and together."""
CHUNKS_FLOOR = 1 << 16
MEAN_CHUNK_BYTES = 1 << 16
"""The uploads of one participant for one attempt may have ``CHUNKS_FLOOR`` chunks and one more per so many bytes."""
RECOUNT_BYTES = 64 << 20
"""A process looks again at what other processes have stored after so many bytes of its own."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one participant's uploads for one attempt take, repeated chunks included.

    Attributes:
        payload_bytes: bytes of all payloads.
        chunks: their number.
        streams: how many streams have fed each upload, by its id; each leaves a segment.
    """

    payload_bytes: int = 0
    chunks: int = 0
    streams: Counter[str] = field(default_factory=Counter)

    @property
    def segments(self) -> int:
        """Segments of all uploads."""
        return self.streams.total()

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.payload_bytes + other.payload_bytes, self.chunks + other.chunks, self.streams + other.streams)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.payload_bytes - other.payload_bytes, self.chunks - other.chunks, self.streams - other.streams)

    def at_least(self, other: Usage) -> Usage:
        """The larger of both, figure by figure."""
        return Usage(
            max(self.payload_bytes, other.payload_bytes),
            max(self.chunks, other.chunks),
            self.streams | other.streams,
        )


class AccountKey(NamedTuple):
    """Whose uploads, for what."""

    run: str
    round: int
    attempt: int
    participant: str


class Account:
    """Shared by the streams of this process that feed uploads of one participant for one attempt. Thread-safe.

    A chunk is charged before it is written, so that streams side by side cannot pass a limit together. What other
    processes store is known as of the last ``recount``: together they may pass a limit by what each of them takes
    between two, at most ``RECOUNT_BYTES``.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._mine = Usage()
        self._elsewhere = Usage()
        self._uncounted_bytes = 0

    @property
    def stale(self) -> bool:
        """Whether so much was charged since the last recount that another is due."""
        return self._uncounted_bytes >= RECOUNT_BYTES

    def charge(self, more: Usage, upload_id: str, grant: UploadGrant) -> None:
        """Take ``more`` for an upload.

        Raises:
            LimitExceededError: if that passes what was granted; nothing is taken then.
        """
        with self._lock:
            mine = self._mine + more
            _check(mine + self._elsewhere, upload_id, grant)
            self._mine = mine
            self._uncounted_bytes += more.payload_bytes

    def refund(self, charged: Usage) -> None:
        """Give back what was charged and not written."""
        with self._lock:
            self._mine -= charged

    def recount(self, mine: Usage, elsewhere: Usage) -> None:
        """Take over what was found on disk of this process's streams and of others'."""
        with self._lock:
            self._mine = self._mine.at_least(mine)
            self._elsewhere = elsewhere
            self._uncounted_bytes = 0

    def check(self, more: Usage, upload_id: str, grant: UploadGrant) -> None:
        """Whether ``more`` could be charged. Raises as ``charge``."""
        with self._lock:
            _check(self._mine + more + self._elsewhere, upload_id, grant)


class Accounts:
    """The accounts that streams hold; one that no stream holds is forgotten, for the disk tells what it told."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: WeakValueDictionary[AccountKey, Account] = WeakValueDictionary()

    def of(self, key: AccountKey) -> Account:
        """The account of a participant for an attempt; the caller recounts it before relying on it."""
        with self._lock:
            return self._held.setdefault(key, Account())


def _check(usage: Usage, upload_id: str, grant: UploadGrant) -> None:
    if usage.segments > MAX_SEGMENTS:
        raise LimitExceededError(
            "upload.streams",
            f"{usage.segments - 1} streams have fed this participant's uploads for the round",
            "send more chunks per stream",
        )
    others = len(usage.streams.keys() - {upload_id})
    if others >= grant.max_uploads:
        raise LimitExceededError(
            "upload.unfinished",
            f"this participant has begun {others} other uploads for the round",
            "go on with one of them: ask for its status and send what is missing",
        )
    if usage.payload_bytes > grant.max_bytes:
        raise LimitExceededError(
            "upload.bytes",
            f"this participant's uploads for the round would hold over {grant.max_bytes} bytes",
            "ask for the upload's status and send only what is missing",
        )
    most = CHUNKS_FLOOR + grant.max_bytes // MEAN_CHUNK_BYTES
    if usage.chunks > most:
        raise LimitExceededError(
            "upload.chunks",
            f"this participant's uploads for the round would have over {most} chunks",
            "send larger chunks, as the welcome asks",
        )
