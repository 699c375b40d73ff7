"""Real processes on this machine, started and ended whatever happens: what both demonstrations stand on.

Read ``supervise``; ``listening`` is of ports. Nothing here depends on another room.
"""

from atoll.processes.ready import read_line, start_ready
from atoll.processes.supervise import (
    ChildFailedError,
    EndedBySignalError,
    Processes,
    guarded,
    raising_on_signals,
    tail,
)

__all__ = [
    "ChildFailedError",
    "EndedBySignalError",
    "Processes",
    "guarded",
    "raising_on_signals",
    "read_line",
    "start_ready",
    "tail",
]
