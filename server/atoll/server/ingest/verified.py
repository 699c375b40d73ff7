"""Tracks which payloads by other processes this process has checked against their digests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from atoll.server.ingest.committed import map_segment, payload_in
from atoll.server.ingest.records import Record
from atoll.server.ingest.segment import DATA

MOST_SEGMENTS = 4096
"""Maximum number of segments kept; the least recently used one is forgotten first."""


@dataclass(eq=False, slots=True)
class _Seen:
    """Records of file ``inode`` that end by ``through`` are checked, and those at ``bad`` failed; guarded by ``lock``.

    A segment only grows, so a later check reads only the rest.
    """

    lock: Lock = field(default_factory=Lock)
    inode: int = -1
    through: int = 0
    bad: set[int] = field(default_factory=set)


class Verified:
    """Checks each payload once, however often it is requested. Thread-safe.

    Later changes on disk are found when the committed upload is read, since its payloads are then checked again.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: OrderedDict[Path, _Seen] = OrderedDict()

    def of(self, folder: Path, name: str, records: Sequence[Record]) -> list[Record]:
        """The records of a segment whose payloads are intact, in the order of its index.

        Raises:
            OSError: if its data file cannot be opened.
            ValueError: if it is empty.
        """
        path = folder / f"{name}{DATA}"
        seen = self._entry(path)
        with seen.lock:
            found = path.stat()
            if found.st_ino != seen.inode:
                seen.inode, seen.through, seen.bad = found.st_ino, 0, set()
            fresh = [record for record in records if _end(record) > seen.through]
            if fresh:
                data = map_segment(folder, name)
                seen.bad |= {record.position for record in fresh if payload_in(data, record) is None}
                seen.through = max(map(_end, fresh))
            return [record for record in records if record.position not in seen.bad and _end(record) <= found.st_size]

    def _entry(self, path: Path) -> _Seen:
        with self._lock:
            seen = self._seen.setdefault(path, _Seen())
            self._seen.move_to_end(path)
            if len(self._seen) > MOST_SEGMENTS:
                self._seen.popitem(last=False)
            return seen


def _end(record: Record) -> int:
    return record.position + record.header.payload_bytes
