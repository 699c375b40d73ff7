"""The memory available to a process."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with a container's memory limit: control groups version 2 and version 1."""


def memory_bytes(limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Memory of this machine in bytes, or of this container if it has less.

    Args:
        limits: files with the container's limit; files that are missing or contain no number are ignored.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(found for path in limits if (found := _limit_in(path)))])


def _limit_in(path: Path) -> int:
    """The number in a file; 0 if there is none ("max": no limit)."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
