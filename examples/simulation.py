"""Compare FedAvg and FedAdam on handwritten digits, with 100 virtual participants that hold few digits each.

``python examples/simulation.py`` takes a few seconds. To install its dependencies:

    pip install -c constraints.txt -e ".[demo]"
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from atoll.client import Model, Participant, Task, Update
from atoll.simulation import Cohort, Evaluation, FedAdam, FedAvg, Federation, Job, Result, data

PARTICIPANTS = 100
Array = npt.NDArray[Any]
pixels, labels = load_digits(return_X_y=True)
images: Array = np.asarray(pixels / 16, np.float32)
held_out = np.arange(len(labels)) % 5 == 0
train_rows = np.flatnonzero(~held_out)
parts = data.dirichlet(labels[train_rows], population=PARTICIPANTS, alpha=0.3, seed=1)


def logits(model: Mapping[str, Array], x: Array) -> Array:
    """Scores of shape (images, 10)."""
    return np.asarray(x @ model["weight"] + model["bias"])


class Digits(Participant):
    """Softmax regression on its own rows, by gradient descent."""

    def __init__(self, number: int) -> None:
        self.rows = train_rows[parts[number]]
        self.examples = len(self.rows)

    def fit(self, model: Model, task: Task) -> Update:
        """Train for the number of epochs in the job."""
        local, x, y = model.copy(), images[self.rows], np.eye(10, dtype=np.float32)[labels[self.rows]]
        for _ in range(task.settings.integer("epochs", 5)):
            scores = np.exp(logits(local, x) - logits(local, x).max(axis=1, keepdims=True))
            error = (scores / scores.sum(axis=1, keepdims=True) - y) / len(x)
            local["weight"] -= 0.5 * x.T @ error
            local["bias"] -= 0.5 * error.sum(axis=0)
        return Update(weights=local, weight=self.examples)


def accuracy(model: Mapping[str, Array]) -> dict[str, float]:
    """Accuracy on the images that no participant has."""
    return {"accuracy": float(np.mean(logits(model, images[held_out]).argmax(axis=1) == labels[held_out]))}


def compare(rounds: int = 30, workers: int = 0) -> Iterator[tuple[str, Result]]:
    """Run the same job with each server optimiser."""
    federation = Federation(participants=Digits, population=PARTICIPANTS)
    initial = {"weight": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}
    for optimiser in (FedAvg(), FedAdam(lr=0.03)):
        job = Job(
            name=optimiser.name,
            rounds=rounds,
            cohort=Cohort(size=10, seed=1),
            optimiser=optimiser,
            training={"epochs": 5},
            evaluation=Evaluation(final=False),
        )
        yield optimiser.name, federation.run(job, initial=initial, evaluate=accuracy, workers=workers)


if __name__ == "__main__":
    for name, result in compare(workers=2):
        curve = result.history.metric("server/accuracy")
        print(f"{name:8} accuracy {curve[-1]:.3f}, model {result.digest[:16]}, {result.seconds:.1f} s")
        result.report(f"{name}.html")
