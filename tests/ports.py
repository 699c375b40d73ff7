"""Ports of servers that tests start, stop, and start again in the same place."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

_PORTS_EACH = 4
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
"""Below the range of outgoing connections, so that none takes the place of a server while it is down."""
_RESERVATIONS = Path(tempfile.gettempdir(), f"atoll-test-ports-{os.getuid()}")
_MOST = 250
"""Reservations of a process; beyond, it gets its own again, the oldest first."""
_taken: dict[int, None] = {}


def free_ports() -> int:
    """The first of four successive ports: main, enrolment, transfer and metrics.

    They are free now. As long as this process runs, no other process of tests gets them, such as another lane of the
    suite, and no other call of this process does until it has got very many.
    """
    for first in _candidates():
        if all(map(_free, range(first, first + _PORTS_EACH))) and _reserved(first):
            _taken.pop(first, None)
            _taken[first] = None
            return first
    raise AssertionError("no free ports on loopback")


def _candidates() -> list[int]:
    if len(_taken) >= _MOST:
        return list(_taken)
    others = [first for first in range(_FIRST_PORT, _LAST_PORT, _PORTS_EACH) if first not in _taken]
    return random.sample(others, len(others))


def _reserved(first: int) -> bool:
    """Lock a byte of a file that all processes of tests share; the system releases it when this process ends."""
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, first)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return False
    return True


@cache
def _reservations() -> int:
    """The shared file. It is never closed: that would release the locks."""
    return os.open(_RESERVATIONS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
