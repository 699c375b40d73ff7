"""The clock of runs: epoch seconds that never jump while the server runs."""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boot_s() -> float:
    """Seconds of a clock that nobody sets and that goes on while the machine is suspended."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class SteadyClock:
    """Epoch seconds: the wall clock is read once, now, and ``boot_s`` counts from there.

    So how long members took, how old something is and when it may go do not depend on a clock that is set meanwhile;
    a wrong one is taken over at the next start. Certificates go by the wall clock, as TLS does.
    """

    def __init__(self) -> None:
        self._offset_s = time.time() - boot_s()

    def __call__(self) -> float:
        """Epoch seconds."""
        return self._offset_s + boot_s()
