"""The peak memory of a process, as Linux reports it."""

from __future__ import annotations

from pathlib import Path

import psutil

GROWTH_BYTES = 64 << 20
"""Bytes by which no message may make a process grow."""


def peak_bytes(pid: int) -> int:
    """The most memory that the process has had since its peak was last forgotten."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


def forget_peak(pid: int) -> int:
    """Memory in use now, from which the next peak is reckoned."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return int(psutil.Process(pid).memory_info().rss)
