"""Participants that do not train, so that only the platform is measured."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atoll.client import Evaluation, Model, Participant, Task, Update

Array = npt.NDArray[np.float32]


class Idle(Participant):
    """Sends local weights that differ from round to round, so each round's model is new to all participants.

    The platform computes local - global from them.

    The weights are random and different for each participant, so an update is never zero.

    Args:
        weights: ``array`` holds an array, as a trainer does (the memory of one model), and changes one element;
            ``constant`` is one number viewed as an array, for machines that run many participants.
    """

    examples = 1

    def __init__(self, weights: str = "array") -> None:
        self._constant = weights == "constant"
        self._random = np.random.default_rng()
        self._weights: dict[str, Array] = {}

    def fit(self, model: Model, task: Task) -> Update:
        """No training."""
        step = np.float32(1e-3 * (task.key.round % 100 + 1))
        if self._constant:
            number = step * self._random.random(dtype=np.float32)
            self._weights = {name: np.broadcast_to(number, view.shape) for name, view in model.items()}
        elif {name: held.shape for name, held in self._weights.items()} != {n: view.shape for n, view in model.items()}:
            self._weights = {name: self._random.random(view.shape, np.float32) for name, view in model.items()}
        else:
            for array in self._weights.values():
                array.reshape(-1)[0] = step
        return Update(weights=self._weights, weight=1)


class Paced(Idle):
    """As ``Idle``, after a pause in which it can be stopped.

    Args:
        pause_s: duration of its "training".
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


class Numbered(Idle):
    """Sends updates that depend only on its number and the round, so that two runs are equal.

    Args:
        number: seeds the updates.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self._number = number

    def fit(self, model: Model, task: Task) -> Update:
        """No training: small random steps, like a trainer's."""
        random = np.random.default_rng((self._number, task.key.round))
        delta = {name: 1e-2 * random.standard_normal(view.shape, np.float32) for name, view in model.items()}
        return Update(delta=delta, weight=1)
