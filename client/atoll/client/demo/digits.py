"""The demo's participant: a small network over handwritten digits, in plain numpy.

``atoll demo`` starts one process for each shard of the data. The network is 64-64-10 with rectified units and softmax
cross-entropy, trained by stochastic gradient descent with momentum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atoll.client.participant import Participant
from atoll.client.update import Evaluation, Update

if TYPE_CHECKING:
    from atoll.client.model import Model
    from atoll.client.task import Task

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Weights = dict[str, Floats]


class Digits(Participant):
    """Trains on one shard: an .npz file with ``images`` float32 (n, 64), ``labels`` int64 (n,) and its ``seed``.

    It trains on the first 90 % of the examples and evaluates received models on the rest.
    """

    def __init__(self, data: str) -> None:
        with np.load(Path(data), allow_pickle=False) as shard:
            images, labels, self._seed = shard["images"], shard["labels"], int(shard["seed"])
        cut = max(1, round(0.9 * len(labels)))
        self._train = images[:cut], labels[:cut]
        self._held_out = images[cut:] if cut < len(labels) else images, labels[cut:] if cut < len(labels) else labels
        self.examples = cut

    def fit(self, model: Model, task: Task) -> Update:
        """Train for ``epochs`` passes; fewer if the task is stopped."""
        settings = task.settings
        weights = {name: model.float32(name).copy() for name in model}
        start = {name: model.float32(name) for name in model}
        velocity = {name: np.zeros_like(values) for name, values in weights.items()}
        lr, momentum = settings.number("lr", 0.1), settings.number("momentum", 0.9)
        losses, seen = [], 0
        for images, labels in self._batches(task):
            loss, gradients = loss_and_gradients(weights, images, labels)
            for name, gradient in gradients.items():
                step = velocity[name]
                step *= momentum
                step += gradient
                step += task.proximal_mu * (weights[name] - start[name])
                weights[name] -= lr * step
            losses.append(loss)
            seen += len(labels)
            if task.should_stop:
                break
        whole = seen >= settings.integer("epochs", 5) * self.examples
        weight = self.examples if whole else max(1, min(seen, self.examples))
        weight = min(weight, task.max_weight)
        return Update(weights, weight=weight, metrics={"loss": float(np.mean(losses))}, partial=not whole)

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        """Accuracy and loss on the shard's held-out part."""
        del task
        images, labels = self._held_out
        logits, _ = forward({name: model.float32(name) for name in model}, images)
        accuracy = float(np.mean(logits.argmax(axis=1) == labels))
        loss = float(-np.mean(log_softmax(logits)[np.arange(len(labels)), labels]))
        return Evaluation({"accuracy": accuracy, "loss": loss}, weight=len(labels))

    def _batches(self, task: Task) -> Iterator[tuple[Floats, Ints]]:
        """Batches of all epochs, in an order determined by the shard's seed and the round."""
        images, labels = self._train
        rng = np.random.default_rng([self._seed, task.round])
        size = task.settings.integer("batch_size", 16)
        for _ in range(task.settings.integer("epochs", 5)):
            order = rng.permutation(len(labels))
            for first in range(0, len(labels), size):
                picked = order[first : first + size]
                yield images[picked], labels[picked]


def forward(weights: Mapping[str, Floats], images: Floats) -> tuple[Floats, Floats]:
    """Logits (n, 10) and hidden activations (n, 64)."""
    hidden = np.maximum(images @ weights["hidden.weight"] + weights["hidden.bias"], 0)
    return hidden @ weights["output.weight"] + weights["output.bias"], hidden


def log_softmax(logits: Floats) -> Floats:
    """Log-probabilities along the last axis."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def loss_and_gradients(weights: Weights, images: Floats, labels: Ints) -> tuple[float, Weights]:
    """Mean cross-entropy of a batch and its gradients."""
    logits, hidden = forward(weights, images)
    logs = log_softmax(logits)
    rows = np.arange(len(labels))
    error: npt.NDArray[Any] = np.exp(logs)
    error[rows, labels] -= 1
    error /= len(labels)
    behind = (error @ weights["output.weight"].T) * (hidden > 0)
    gradients = {
        "hidden.weight": images.T @ behind,
        "hidden.bias": behind.sum(axis=0),
        "output.weight": hidden.T @ error,
        "output.bias": error.sum(axis=0),
    }
    return float(-np.mean(logs[rows, labels])), gradients
