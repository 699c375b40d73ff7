"""The client's clock: seconds since an arbitrary start that also pass while the machine is suspended.

Wall clocks jump, and ``time.monotonic`` stops during a suspend on Linux. So deadlines, which arrive as "seconds from
now", use CLOCK_BOOTTIME where it exists.
"""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def wall_s() -> float:
    """Seconds since the epoch by this machine's clock, which may be wrong; only for certificates, as a last resort."""
    return time.time()


def now_s() -> float:
    """Seconds since an arbitrary start; only differences are meaningful."""
    if _BOOTTIME is None:
        return time.monotonic()
    return time.clock_gettime(_BOOTTIME)


def bounded_s(received_s: float, most_s: float) -> float:
    """A duration that the server sent, limited to the range 0 to ``most_s``; NaN becomes 0."""
    return min(received_s, most_s) if received_s > 0.0 else 0.0
