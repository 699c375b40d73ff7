"""Bounds on waits in tests: they end a test that hangs, and are long enough for a busy machine.

A passing test never waits this long, so the bounds cost nothing. A test must not expect anything to be *fast*: it shows
promptness by the cause of an event, by counting, or by ``kept``.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable

WAIT_S = 300.0
"""Seconds until a wait for an event, a process or a call gives up."""
_STARTS = 20
"""Allowance for a step beyond the time that it promises, in starts of a Python process."""
_LEAST_WINDOW_S = 8.0
"""A process may get no processor for seconds, also where the start of another is fast."""


async def until(holds: Callable[[], bool]) -> None:
    """Wait until this holds, where no event tells."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


def until_now(holds: Callable[[], bool], every_s: float = 0.01) -> None:
    """As ``until``, for a test without an event loop; ``every_s`` is longer where asking is costly."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it does not hold"
        time.sleep(every_s)


def kept(took_s: float, promised_s: float) -> bool:
    """Whether a promise in seconds was kept, on a machine as busy as this one is just now.

    Commands, connections and processes that are part of what was timed take longer on a busy machine. The time to start
    a Python process that imports numpy, measured if the promise seems broken, is the allowance for that: the longest of
    three, for one may be lucky.
    """
    return took_s < promised_s or took_s < promised_s + _STARTS * max(_start_s() for _ in range(3))


def window_s() -> float:
    """A report window that a test waits out, long enough on this machine for participants that report at once."""
    return max(_LEAST_WINDOW_S, _STARTS * _start_s())


def _start_s() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True, timeout=WAIT_S)
    return time.monotonic() - began
