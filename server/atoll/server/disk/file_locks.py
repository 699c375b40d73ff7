"""Locks on files, between threads and processes: they belong to the open file, and go with it however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def hold(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file, so that it is not written over, without waiting; whether that is granted."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share(descriptor: int, path: Path) -> bool:
    """Hold a file so that others may read it, but none writes it over; False if it is not at ``path`` any more.

    Waits while someone else has it: the moment in which it changes hands.
    """
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return is_at(descriptor, path)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def locked(path: Path) -> int | None:
    """A descriptor of the file at ``path`` with its lock; None if another owner has it, or the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    # An owner that had the lock between the lines above and below has renamed or removed the file by now.
    try:
        held = hold(descriptor) and is_at(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    if held:
        return descriptor
    os.close(descriptor)
    return None
