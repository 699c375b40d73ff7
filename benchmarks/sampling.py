"""Memory and processor time of processes while something runs, from /proc."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

INTERVAL_S = 0.1
_KIB = 1024


@dataclass(frozen=True)
class Memory:
    """Bytes resident: ``anonymous`` is the process's own; ``mapped`` (files, shared memory) is page cache."""

    anonymous: int = 0
    mapped: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.anonymous + other.anonymous, self.mapped + other.mapped)


class Sampler:
    """Peaks of the memory of groups of processes, sampled on a thread while the ``with`` block runs.

    Args:
        groups: by name, the root process; its current descendants belong to the group.
        folder: whose disk use is sampled too.
        spenders: processes whose processor time counts, with their descendants'; by default the groups.
    """

    def __init__(
        self, groups: dict[str, int], folder: Path | None = None, *, spenders: Collection[int] | None = None
    ) -> None:
        self._groups = groups
        self._spenders = groups.values() if spenders is None else spenders
        self._folder = folder
        self._peaks = dict.fromkeys(groups, Memory())
        self.disk_bytes = 0
        self._spent: list[tuple[float, dict[int, float]]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-sampler", daemon=True)

    def peak(self, group: str) -> Memory:
        """The peak sums over the group's processes, separately for anonymous and mapped memory."""
        return self._peaks[group]

    def cpu_s(self, start: float, stop: float, spender: int | None = None) -> float:
        """Processor seconds that all spenders together, or one of them, spent between two moments (epoch seconds)."""
        times = [at for at, _ in self._spent]
        first, last = (self._spent[min(bisect_left(times, at), len(times) - 1)][1] for at in (start, stop))
        return sum(last[head] - first[head] for head in ([spender] if spender is not None else last))

    def __enter__(self) -> Self:
        self._spent.append(self._spent_now())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._spent.append(self._spent_now())

    def _spent_now(self) -> tuple[float, dict[int, float]]:
        return time.time(), {head: cpu_s_of(family(head)) for head in self._spenders}

    def _sample(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self._spent.append(self._spent_now())
            for name, head in self._groups.items():
                now, before = total(family(head)), self._peaks[name]
                self._peaks[name] = Memory(max(now.anonymous, before.anonymous), max(now.mapped, before.mapped))
            if self._folder is not None:
                self.disk_bytes = max(self.disk_bytes, disk_bytes(self._folder))


def cpu_s_of(pids: Iterable[int]) -> float:
    """Processor seconds, user and system, of these processes; ended processes count 0."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def total(pids: Iterable[int]) -> Memory:
    """Total memory of these processes; ended processes count 0."""
    return sum((memory_of(pid) for pid in pids), Memory())


def memory_of(pid: int) -> Memory:
    """Memory of one process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return Memory()
    fields = {key: value for key, _, value in (line.partition(":") for line in lines)}
    bytes_of = {key: int(fields.get(key, "0 kB").split()[0]) * _KIB for key in ("RssAnon", "RssFile", "RssShmem")}
    return Memory(bytes_of["RssAnon"], bytes_of["RssFile"] + bytes_of["RssShmem"])


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for one in found:
        try:
            children = Path(f"/proc/{one}/task/{one}/children").read_text(encoding="utf-8").split()
        except OSError:
            continue
        found += [int(child) for child in children]
    return found


def disk_bytes(folder: Path) -> int:
    """Disk use of a folder's files in bytes; files and folders that disappear meanwhile count 0."""
    return sum(_blocks(Path(here) / name) for here, _, names in os.walk(folder) for name in names)


def _blocks(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_blocks * 512
