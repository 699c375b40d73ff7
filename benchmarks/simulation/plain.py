"""Participants whose ``fit`` takes a given processor time, and a plain loop with the same number of calls."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable

import numpy as np

from atoll.client import Model, Participant, Task, Update

EXAMPLES = 50


class Spinning(Participant):
    """Spends ``fit_s`` seconds of its thread's processor time, and sends a prepared update.

    Args:
        fit_s: processor seconds of a ``fit``.
        delta: the update, float32.
    """

    examples = EXAMPLES

    def __init__(self, fit_s: float, delta: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        self._fit_s = fit_s
        self._delta = delta

    def fit(self, model: Model, task: Task) -> Update:
        """See ``Participant``."""
        del model, task
        spin(self._fit_s)
        return Update(delta={"w": self._delta}, weight=EXAMPLES, metrics={"loss": 1.0})


def spin(seconds: float) -> None:
    """Keep the processor busy."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def loop_s(fit_s: float, tasks: int, processes: int) -> float:
    """Seconds of a plain loop over this many forked processes; each only does its share."""
    began = time.perf_counter()

    def share() -> None:
        for _ in range(tasks // processes):
            spin(fit_s)

    children = [forked(share) for _ in range(processes)]
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"a process of the plain loop has ended with status {status}")
    return time.perf_counter() - began


def forked(work: Callable[[], object]) -> int:
    """Call a function in a forked process; return the process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)
