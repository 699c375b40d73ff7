"""Ports of servers that tests start, stop, and start again in the same place."""

from __future__ import annotations

import random
import socket

_PORTS_EACH = 4
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
"""Below the range of outgoing connections, so that none takes the place of a server while it is down."""


def free_ports() -> int:
    """The first of four successive ports that are free now: main, enrolment, transfer and metrics."""
    for first in random.sample(range(_FIRST_PORT, _LAST_PORT, _PORTS_EACH), 100):
        if all(_free(port) for port in range(first, first + _PORTS_EACH)):
            return first
    raise AssertionError("no free ports on loopback")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
