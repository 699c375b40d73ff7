"""The one clock of the client: seconds since an arbitrary start that also pass while the machine is suspended.

Wall clocks jump and ``time.monotonic`` stands still in a suspend on Linux, so deadlines, which arrive as "seconds from
now", are kept on CLOCK_BOOTTIME where there is one.
"""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def wall_s() -> float:
    """Epoch seconds by this machine's clock, which may be wrong: for certificates alone, and only without better."""
    return time.time()


def now_s() -> float:
    """Seconds; only differences mean anything."""
    if _BOOTTIME is None:
        return time.monotonic()
    return time.clock_gettime(_BOOTTIME)


def bounded_s(told_s: float, most_s: float) -> float:
    """Seconds as the server told them, as far as they can be: from 0 to ``most_s``; 0 for what is no number."""
    return min(told_s, most_s) if told_s > 0.0 else 0.0
