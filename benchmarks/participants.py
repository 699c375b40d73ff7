"""Participants that do not train: what remains is the platform."""

from __future__ import annotations

import numpy as np

from atoll.client import Model, Participant, Task, Update


class Idle(Participant):
    """Sends the same small difference each round."""

    examples = 1

    def __init__(self) -> None:
        self._delta: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}

    def fit(self, model: Model, task: Task) -> Update:
        """No training."""
        del task
        if not self._delta:
            self._delta = {name: np.full(view.shape, 1e-3, np.float32) for name, view in model.items()}
        return Update(delta=self._delta, weight=1)
