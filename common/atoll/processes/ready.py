"""Wait for the line that a child writes to a pipe once it is ready."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence

from atoll.processes.supervise import ChildFailedError, Processes


def start_ready(
    processes: Processes, name: str, command: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> bytes:
    """Start a command that takes ``--ready-fd``, and wait for the line that it writes there.

    Raises:
        ChildFailedError: if the command ends, or writes nothing within ``timeout_s``.
    """
    reading, writing = os.pipe()
    try:
        processes.start(name, [*command, "--ready-fd", str(writing)], environment, (writing,))
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        line = read_line(pipe.fileno(), timeout_s)
    if not line:
        processes.check(wait_s=1.0)
        raise ChildFailedError(f"the {name} does not serve after {timeout_s:.0f} s")
    return line


def read_line(descriptor: int, timeout_s: float) -> bytes:
    """One line from a pipe; empty if the pipe closes or the time is over before the line is complete."""
    line, end = b"", time.monotonic() + timeout_s
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        piece = os.read(descriptor, 65_536) if readable else b""
        if not piece:
            break
        line += piece
    return line if line.endswith(b"\n") else b""
