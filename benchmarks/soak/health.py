"""A server's resource use at one moment, measured from outside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sampling import disk_bytes, family, total

DATABASE = "atoll.sqlite3"
_KEPT_FOLDERS = ("blobs", "spool", "partials")
_FREE_FOLDERS = ("blobs/free", "spool/.free")


@dataclass(frozen=True)
class Health:
    """One sample.

    Attributes:
        at_s: seconds since the beginning.
        rounds: released so far.
        connected: running participants.
        memory: anonymous bytes of all processes of the server.
        descriptors: open files and sockets of all of them.
        threads: of all of them.
        files: bytes on disk of models, uploads and partial sums.
        entries: number of these files.
        free: bytes on disk of files kept only to be overwritten, which ``files`` excludes.
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
    entries: float
    free: float
    database: float
    log: float


def sample(server: int, data: Path, at_s: float, rounds: int, connected: int) -> Health:
    """Sample a server, by its process id and its data directory."""
    pids = family(server)
    free = float(sum(disk_bytes(data / name) for name in _FREE_FOLDERS))
    return Health(
        at_s=at_s,
        rounds=rounds,
        connected=connected,
        memory=float(total(pids).anonymous),
        descriptors=float(sum(map(_descriptors, pids))),
        threads=float(sum(map(_threads, pids))),
        files=float(sum(disk_bytes(data / name) for name in _KEPT_FOLDERS)) - free,
        entries=float(
            sum(_entries(data / name) for name in _KEPT_FOLDERS) - sum(_entries(data / name) for name in _FREE_FOLDERS)
        ),
        free=free,
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


def _entries(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def _size(path: Path) -> float:
    try:
        return float(path.stat().st_size)
    except OSError:
        return 0.0
