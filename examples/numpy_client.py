"""Ridge regression over data that stays here, in plain numpy."""

import numpy as np

from atoll.client import Model, Participant, Task, Update


class Ridge(Participant):
    """One participant; ``seed`` stands for its own data."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(200, 8)).astype(np.float32)
        self.y = self.x @ np.arange(8, dtype=np.float32) + rng.normal(size=200).astype(np.float32)
        self.examples = len(self.x)

    def fit(self, model: Model, task: Task) -> Update:
        """Gradient descent from the global weights."""
        w = model["weight"].copy()
        for _ in range(task.settings.integer("epochs", 10)):
            w -= task.settings.number("lr", 0.1) * (self.x.T @ (self.x @ w - self.y) / self.examples + 0.01 * w)
        loss = float(np.mean((self.x @ w - self.y) ** 2))
        return Update(weights={"weight": w}, weight=self.examples, metrics={"loss": loss})
