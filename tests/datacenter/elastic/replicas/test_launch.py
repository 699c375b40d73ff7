"""The launcher's own parts: its store, and children that have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from atoll.datacenter.elastic.agent import has_ended, has_failed
from atoll.datacenter.elastic.replicas.launch import open_store


def listening(port: int) -> set[str]:
    """Return the local addresses, in hexadecimal, on which this machine listens at a port."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with Path(table).open(encoding="ascii") as lines:
            for line in list(lines)[1:]:
                local, _, state = line.split()[1:4]
                address, _, at = local.partition(":")
                if state == "0A" and int(at, 16) == port:
                    found.add(address)
    return found


def test_the_store_listens_on_the_loopback_alone() -> None:
    """It has no password: other machines must not reach it."""
    store = open_store()
    store.set("key", "value")
    assert listening(store.port) == {"0100007F"}


def test_a_child_has_ended_before_and_after_it_is_waited_for() -> None:
    """Until then the launcher does not let torch check: torch would send SIGTERM to the ranks beside a failed one."""
    read, write = os.pipe()
    child = subprocess.Popen((sys.executable, "-c", "import os; os.read(0, 1); raise SystemExit(3)"), stdin=read)
    assert not has_ended(child.pid)
    os.close(write)
    os.close(read)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(child.pid)
    assert has_failed(child.pid)
    assert child.wait() == 3
    assert has_ended(child.pid)
