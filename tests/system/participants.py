"""Participants for the system tests: every update is a pure function of (index, round, model).

They are started by ``atoll client start participants:NAME`` in this folder, and import only numpy and the SDK. They
report what the SDK has no event for as JSON lines on standard output. A held participant waits for a line on standard
input.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.client import Evaluation, Model, Participant, Task, Update

Array = npt.NDArray[Any]
HOLD_S = 300.0
"""How long a held participant waits for its line; ``tests`` cannot be imported here."""


def examples_of(index: int) -> int:
    """The weight of a participant."""
    return 10 + 7 * index


def trained(model: Mapping[str, Array], index: int, round_: int) -> dict[str, Array]:
    """The local weights of participant ``index``: a step towards zero, plus its own noise."""
    noise = np.random.default_rng((index, round_))
    return {
        name: (0.9 * weights + 0.1 * noise.standard_normal(weights.shape)).astype(weights.dtype)
        for name, weights in model.items()
    }


def say(event: str, task: Task, **fields: object) -> None:
    """Report an event to the test, as a JSON line."""
    at = {"run": task.run, "round": task.round, "attempt": task.attempt}
    sys.stdout.write(json.dumps({"event": event, **at, **fields}) + "\n")
    sys.stdout.flush()


class Steady(Participant):
    """Trains and reports at once."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.examples = examples_of(index)

    def fit(self, model: Model, task: Task) -> Update:
        self.ponder(task)
        weights = self.weights(trained(model, self.index, task.round), task)
        return Update(weights=weights, weight=self.examples, metrics={"index": float(self.index)})

    def ponder(self, task: Task) -> None:
        """Act before training."""

    def weights(self, weights: Mapping[str, Array], task: Task) -> Mapping[str, Array]:
        """Return the weights to send; a subclass may change them."""
        del task
        return weights


class Judging(Steady):
    """Also evaluates: the mean of all elements, over as many examples as its index says."""

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        del task
        mean = float(np.mean([np.mean(values, dtype=np.float64) for values in model.values()]))
        return Evaluation(metrics={"mean": mean}, weight=1 + self.index)


class Peaking(Steady):
    """Adds one to every element, and evaluates models of zeros best after three rounds."""

    def fit(self, model: Model, task: Task) -> Update:
        del task
        delta = {name: np.ones_like(values) for name, values in model.items()}
        return Update(delta=delta, weight=self.examples)

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        del task
        rounds = float(np.mean([np.mean(values, dtype=np.float64) for values in model.values()]))
        return Evaluation({"score": -abs(rounds - 3)}, self.examples)


def stepped(model: Mapping[str, Array], index: int, round_: int) -> dict[str, Array]:
    """The update of participant ``index``: a step towards noise of its own, in multiples of 2^-12 below 1/8.

    float32 holds them exactly, and so do the server's sums, so the server must agree with plain float64 arithmetic to
    the last bit.
    """
    noise = np.random.default_rng((index, round_))
    steps = {name: noise.standard_normal(weights.shape) - weights for name, weights in model.items()}
    return {name: (np.clip(np.rint(64 * step), -500, 500) / 4096).astype(np.float32) for name, step in steps.items()}


class Exact(Judging):
    """Sends ``stepped``."""

    def fit(self, model: Model, task: Task) -> Update:
        return Update(delta=stepped(model, self.index, task.round), weight=self.examples)


class Gate:
    """Opens once for each line on standard input, and whenever a task is stopped."""

    def __init__(self) -> None:
        self._signs: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self, task: Task, *, obey: bool) -> str:
        """Wait for "go", or, with ``obey``, for "stop"."""
        if obey:
            threading.Thread(target=self._heed, args=(task,), daemon=True).start()
        return self._signs.get(timeout=HOLD_S)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._signs.put(line.strip())

    def _heed(self, task: Task) -> None:
        if task.stop_event.wait(HOLD_S):
            self._signs.put("stop")


class Versatile(Exact):
    """Trains, evaluates and answers statistics.

    ``training.held`` of the job names tasks in which it waits, as ``ROUND:INDEX``, until it may continue or is stopped;
    with ``!`` after it, until it may continue.
    """

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self._gate = Gate()

    def fit(self, model: Model, task: Task) -> Update:
        held, place = str(task.settings.get("held", "")).split(), f"{task.round}:{self.index}"
        if place in held or f"{place}!" in held:
            say("held", task)
            self._gate.wait(task, obey=place in held)
        return super().fit(model, task)

    def table(self) -> dict[str, Any]:
        random, rows = np.random.default_rng(self.index), 40 + self.index
        return {"age": random.integers(20, 90, rows), "label": random.integers(0, 2, rows)}


class Held(Steady):
    """Waits in ``fit`` in some rounds until it may continue, or with ``obey`` until it is stopped, which it reports."""

    def __init__(self, index: int = 0, rounds: Sequence[int] = (0,), obey: bool = True) -> None:
        super().__init__(index)
        self._rounds = rounds
        self._obey = obey
        self._gate = Gate()

    def ponder(self, task: Task) -> None:
        if task.round in self._rounds:
            say("held", task)
            if self._gate.wait(task, obey=self._obey) == "stop":
                say("told_to_stop", task, reason=task.stop_reason, should_stop=task.should_stop)


class HeldUpload(Steady):
    """Stops in the middle of its upload in some rounds, with the tensors before the last on their way."""

    def __init__(self, index: int = 0, rounds: Sequence[int] = (0,)) -> None:
        super().__init__(index)
        self._rounds = rounds
        self._gate = Gate()

    def weights(self, weights: Mapping[str, Array], task: Task) -> Mapping[str, Array]:
        return Sluggish(weights, task, self._gate) if task.round in self._rounds else weights


class Sluggish(Mapping[str, Array]):
    """Weights whose last tensor is delayed once, when it is read for sending, after it has been checked."""

    def __init__(self, weights: Mapping[str, Array], task: Task, gate: Gate) -> None:
        self._weights = weights
        self._task = task
        self._gate = gate
        self._last = list(weights)[-1]
        self._reads = 0

    def __getitem__(self, name: str) -> Array:
        if name == self._last:
            self._reads += 1
            if self._reads == 2:
                say("held", self._task)
                self._gate.wait(self._task, obey=False)
        return self._weights[name]

    def __contains__(self, name: object) -> bool:
        return name in self._weights  # a Mapping's own would read

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class Crashing(Steady):
    """Fails in ``fit`` in its first ``attempts`` attempts at every round."""

    def __init__(self, index: int = 0, attempts: int = 1000) -> None:
        super().__init__(index)
        self._attempts = attempts

    def ponder(self, task: Task) -> None:
        if task.attempt < self._attempts:
            raise RuntimeError("the sensor is unplugged")


class NotFinite(Steady):
    """Sends a NaN."""

    def weights(self, weights: Mapping[str, Array], task: Task) -> Mapping[str, Array]:
        del task
        next(iter(weights.values())).flat[3] = np.nan
        return weights


def norm(model: Mapping[str, Array]) -> dict[str, float]:
    """An operator's evaluator: the model's Euclidean norm, and how many elements it has."""
    squares = sum(float(np.sum(np.square(values, dtype=np.float64))) for values in model.values())
    return {"norm": squares**0.5, "elements": float(sum(values.size for values in model.values()))}
