"""What a server takes at a moment, seen from outside."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.sampling import disk_bytes, family, total

DATABASE = "atoll.sqlite3"
_KEPT_FOLDERS = ("blobs", "spool", "partials")


@dataclass(frozen=True)
class Health:
    """One sample.

    Attributes:
        at_s: seconds since the beginning.
        rounds: released so far.
        connected: participants that run.
        memory: anonymous bytes of all processes of the server.
        descriptors: open files and sockets of all of them.
        threads: of all of them.
        files: bytes on disk of models, uploads and partial sums.
        database: bytes of the database, without its write-ahead log.
        log: bytes of the write-ahead log.
    """

    at_s: float
    rounds: int
    connected: int
    memory: float
    descriptors: float
    threads: float
    files: float
    database: float
    log: float


SERIES = tuple(field.name for field in fields(Health) if field.type == "float" and field.name != "at_s")


def sample(server: int, data: Path, at_s: float, rounds: int, connected: int) -> Health:
    """Look at a server by the id of its process, and at its data directory."""
    pids = family(server)
    return Health(
        at_s=at_s,
        rounds=rounds,
        connected=connected,
        memory=float(total(pids).anonymous),
        descriptors=float(sum(map(_descriptors, pids))),
        threads=float(sum(map(_threads, pids))),
        files=float(sum(disk_bytes(data / name) for name in _KEPT_FOLDERS)),
        database=_size(data / DATABASE),
        log=_size(data / f"{DATABASE}-wal"),
    )


def _descriptors(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has just ended
        return 0


def _threads(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0


def _size(path: Path) -> float:
    try:
        return float(path.stat().st_size)
    except OSError:
        return 0.0
