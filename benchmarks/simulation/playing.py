"""Run one simulation in its own process: ``python -m benchmarks.simulation.playing CASE SETTINGS``.

SETTINGS is JSON. The last printed line is JSON too: the measurements, and the time at which the first round began.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from atoll.client import Model, Participant, Task, Update
from atoll.simulation import Cohort, Federation, Job
from benchmarks.simulation.plain import EXAMPLES, Spinning, loop_s

PIXELS, CLASSES, ROWS = 784, 10, 20


@dataclass(frozen=True)
class Played:
    """Seconds to the result, and until the first round began."""

    seconds: float
    start_s: float


class Logistic(Participant):
    """Logistic regression on its own rows, created when it is drawn: one step over all of them."""

    examples = ROWS

    def __init__(self, number: int) -> None:
        random = np.random.default_rng(number)
        self._x = random.standard_normal((ROWS, PIXELS), np.float32)
        self._y = np.eye(CLASSES, dtype=np.float32)[random.integers(CLASSES, size=ROWS)]

    def fit(self, model: Model, task: Task) -> Update:
        """See ``Participant``."""
        del task
        scores = np.exp(self._x @ model["weight"] + model["bias"])
        error = (scores / scores.sum(axis=1, keepdims=True) - self._y) / ROWS
        delta = {"weight": -0.1 * (self._x.T @ error), "bias": -0.1 * error.sum(axis=0)}
        return Update(delta=delta, weight=ROWS)


class Large(Participant):
    """Sends local weights that it allocates anew in each task, as training does."""

    examples = EXAMPLES

    def fit(self, model: Model, task: Task) -> Update:
        """See ``Participant``."""
        del task
        return Update(weights={name: values + np.float32(2**-10) for name, values in model.items()}, weight=EXAMPLES)


def tasks(settings: Mapping[str, Any]) -> dict[str, float]:
    """The same tasks in a plain loop and in a simulation, each also with few rounds, to subtract the start-up."""
    fit_s, size, rounds, workers = (settings[name] for name in ("fit_s", "size", "rounds", "workers"))
    delta = np.random.default_rng(0).standard_normal(settings["elements"]).astype(np.float32) * np.float32(1e-3)
    initial = {"w": np.zeros(settings["elements"], np.float32)}
    federation = Federation(lambda _: Spinning(fit_s, delta), population=10 * size, examples=EXAMPLES)

    def play(count: int) -> Spent:
        before = Spent.now()
        federation.run(Job(rounds=count, cohort=Cohort(size=size, seed=1)), initial=initial, workers=workers)
        return Spent.now() - before

    play(1)
    with threadpool_limits(1):
        loops = [loop_s(fit_s, rounds * size, max(1, workers))]
        pairs = [(play(1), play(1 + rounds)) for _ in range(settings["repeats"])]
        loops.append(loop_s(fit_s, rounds * size, max(1, workers)))
    count = rounds * size
    wall_s = min(whole.wall_s for _, whole in pairs) - min(first.wall_s for first, _ in pairs)
    cpu_s = min(whole.cpu_s for _, whole in pairs) - min(first.cpu_s for first, _ in pairs)
    return {"wall_s": wall_s / count, "cpu_s": cpu_s / count, "loop_s": min(loops) / count}


@dataclass(frozen=True)
class Spent:
    """Elapsed seconds, and processor seconds of this process and its ended children."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Spent:
        """The difference since an earlier reading."""
        times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in times))

    def __sub__(self, before: Spent) -> Spent:
        return Spent(self.wall_s - before.wall_s, self.cpu_s - before.cpu_s)


def population(settings: Mapping[str, Any]) -> dict[str, float]:
    """Logistic regression over a large population."""
    initial = {"weight": np.zeros((PIXELS, CLASSES), np.float32), "bias": np.zeros(CLASSES, np.float32)}
    federation = Federation(Logistic, population=settings["population"], examples=ROWS, keep=settings["keep"])
    return _played(federation, settings, initial)


def large(settings: Mapping[str, Any]) -> dict[str, float]:
    """A large model."""
    initial = {f"layer{number}": np.zeros(settings["elements"] // 10, np.float32) for number in range(10)}
    return _played(Federation(lambda _: Large(), population=100, examples=EXAMPLES), settings, initial)


def _played(federation: Federation, settings: Mapping[str, Any], initial: dict[str, Any]) -> dict[str, float]:
    began, at = time.perf_counter(), list[float]()
    job = Job(rounds=settings["rounds"], cohort=Cohort(size=settings["size"], seed=1))
    federation.run(
        job, initial=initial, workers=settings["workers"], progress=lambda *_: at.append(time.perf_counter())
    )
    return {"seconds": time.perf_counter() - began, "start_s": at[0] - began}


CASES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, float]]] = {
    "tasks": tasks,
    "population": population,
    "large": large,
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](json.loads(sys.argv[2]))))
