"""The clock of runs: epoch seconds that never jump while the server runs."""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boot_s() -> float:
    """Seconds of a clock that cannot be set and that continues while the machine is suspended."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class SteadyClock:
    """Epoch seconds: reads the wall clock once, at construction, and continues with ``boot_s``.

    Durations and ages thus do not change when the wall clock is set; the new time takes effect at the next start.
    Certificates are checked against the wall clock, as in TLS.
    """

    def __init__(self) -> None:
        self._offset_s = time.time() - boot_s()

    def __call__(self) -> float:
        """Epoch seconds."""
        return self._offset_s + boot_s()
