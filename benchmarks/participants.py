"""Participants that do not train: what remains is the platform."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atoll.client import Evaluation, Model, Participant, Task, Update

Array = npt.NDArray[np.float32]


class Idle(Participant):
    """Sends local weights that differ from round to round, so that each round's model is new to all participants.

    The platform computes local - global from them.

    They are random and each participant's own, so that an update is never zero.

    Args:
        weights: ``array`` holds them, as a trainer does (one model's worth of memory), and changes one element;
            ``constant`` is one number seen as an array, for machines that run many participants.
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


class Numbered(Idle):
    """Sends updates that depend on its number and the round alone, so that two runs are the same.

    Args:
        number: seeds them.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self._number = number

    def fit(self, model: Model, task: Task) -> Update:
        """No training: small random steps, as a trainer's are."""
        random = np.random.default_rng((self._number, task.key.round))
        delta = {name: 1e-2 * random.standard_normal(view.shape, np.float32) for name, view in model.items()}
        return Update(delta=delta, weight=1)
