"""Operating-system services for processes: child processes, listening ports, the C heap, environment variables.

Read ``supervise`` first. Imports no other part of Atoll.
"""

from atoll.processes.supervise import (
    ChildFailedError,
    EndedBySignalError,
    Processes,
    guarded,
    raising_on_signals,
    read_line,
    start_ready,
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
