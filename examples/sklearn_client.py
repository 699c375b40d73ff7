"""Logistic regression over handwritten digits with scikit-learn's SGDClassifier.

    pip install -c constraints.txt -e . scikit-learn safetensors
    atoll client start examples/sklearn_client.py:Digits --arg shard=3 --arg shards=8 --join @token.txt

The model has two tensors, ``coef`` (10, 64) and ``intercept`` (10,). ``python examples/sklearn_client.py`` writes the
initial ones to initial.safetensors, for the operator's job.
"""

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from atoll.client import Evaluation, Model, Participant, Task, Update

CLASSES = np.arange(10)


class Digits(Participant):
    """One of ``shards`` participants: every ``shards``-th image is its own, one in five of them held out."""

    def __init__(self, shard: int = 0, shards: int = 8) -> None:
        images, labels = load_digits(return_X_y=True)
        images, labels = images[shard::shards] / 16, labels[shard::shards]
        held_out = np.arange(len(labels)) % 5 == 0
        self.train = images[~held_out], labels[~held_out]
        self.test = images[held_out], labels[held_out]
        self.examples = int((~held_out).sum())

    def fit(self, model: Model, task: Task) -> Update:
        """Train for the requested epochs, or until the task is stopped."""
        classifier = classifier_of(model, task.settings.number("lr", 0.1), seed=task.seed % 2**32)
        epochs = task.settings.integer("epochs", 5)
        done = 0
        while done < epochs and not task.should_stop:
            classifier.partial_fit(*self.train)
            done += 1
        return Update(
            weights={"coef": np.asarray(classifier.coef_), "intercept": np.asarray(classifier.intercept_)},
            weight=self.examples if done else 0,
            partial=done < epochs,
        )

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        """Loss and accuracy on the held-out images."""
        del task
        images, labels = self.test
        classifier = classifier_of(model, lr=0.1)
        loss = log_loss(labels, classifier.predict_proba(images), labels=CLASSES)
        return Evaluation({"loss": float(loss), "accuracy": float(classifier.score(images, labels))}, len(labels))


def classifier_of(model: Model, lr: float, seed: int = 0) -> SGDClassifier:
    """A classifier that starts from the global weights."""
    classifier = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=lr, random_state=seed)
    classifier.partial_fit(np.zeros((len(CLASSES), 64)), CLASSES, classes=CLASSES)  # makes the arrays
    classifier.coef_ = model["coef"].astype(np.float64)
    classifier.intercept_ = model["intercept"].astype(np.float64)
    return classifier


if __name__ == "__main__":
    save_file({"coef": np.zeros((10, 64), np.float32), "intercept": np.zeros(10, np.float32)}, "initial.safetensors")
