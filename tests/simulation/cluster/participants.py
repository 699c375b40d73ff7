"""Participants of the cluster's tests. A worker imports this module, which does not load torch as the tests do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from atoll.client import Model, Participant, Task, Update
from tests.simulation.test_federation import Stepping
from tests.simulation.test_process_pool import Random


class Deadly(Random):
    """Ends the process of the first task of the third round."""

    def __init__(self, number: int, marker: Path) -> None:
        super().__init__(number)
        self.marker = marker

    def fit(self, model: Model, task: Task) -> Update:
        if task.round == 2 and first(self.marker):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(model, task)


def first(marker: Path) -> bool:
    """Whether this process is the first that asks."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Drifting(Stepping):
    """Its result depends on how often it was asked, in any process."""

    marker = Path()

    def fit(self, model: Model, task: Task) -> Update:
        del task
        with self.marker.open("a") as file:
            file.write("x")
        step = np.float32(self.marker.stat().st_size)
        return Update(delta={name: np.full_like(values, step) for name, values in model.items()}, weight=1)


def broken(number: int) -> Participant:
    raise LookupError(f"no folder for {number}")
