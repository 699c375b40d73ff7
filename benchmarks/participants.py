"""Participants that do not train: what remains is the platform."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atoll.client import Evaluation, Model, Participant, Task, Update

_VALUE = np.float32(1e-3)


class Idle(Participant):
    """Hands in the same local weights each round; the platform computes local - global from them.

    Args:
        weights: ``array`` holds them, as a trainer does (one model's worth of memory); ``constant`` is one number seen
            as an array, for machines that run many participants.
    """

    examples = 1

    def __init__(self, weights: str = "array") -> None:
        self._constant = weights == "constant"
        self._weights: dict[str, npt.NDArray[np.float32]] = {}

    def fit(self, model: Model, task: Task) -> Update:
        """No training."""
        del task
        if not self._weights:
            made = np.broadcast_to if self._constant else _filled
            self._weights = {name: made(_VALUE, view.shape) for name, view in model.items()}
        return Update(weights=self._weights, weight=1)


class Paced(Idle):
    """As ``Idle``, after a pause in which it can be told to stop.

    Args:
        pause_s: what its "training" takes.
    """

    def __init__(self, pause_s: float = 0.1) -> None:
        super().__init__()
        self._pause_s = pause_s

    def fit(self, model: Model, task: Task) -> Update:
        """A pause, and no training."""
        task.stop_event.wait(self._pause_s)
        return super().fit(model, task)

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        """Something to report."""
        del task
        return Evaluation(metrics={"tensors": float(len(model))}, weight=1)


def _filled(value: np.float32, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    return np.full(shape, value, np.float32)
