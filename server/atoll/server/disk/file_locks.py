"""Locks on files between threads and processes; a lock belongs to the open file and ends with it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def hold(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file, without waiting, so that it is not overwritten; returns whether the lock was granted."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share(descriptor: int, path: Path) -> bool:
    """Hold a shared lock on a file, so that no one overwrites it; False if it is no longer at ``path``.

    Waits while the file changes owners, which takes a moment.
    """
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return is_at(descriptor, path)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def locked(path: Path) -> int | None:
    """A locked descriptor of the file at ``path``; None if another owner has the lock, or the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    # an owner that had the lock between the lines above and below has renamed or removed the file by now
    try:
        held = hold(descriptor) and is_at(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    if held:
        return descriptor
    os.close(descriptor)
    return None
