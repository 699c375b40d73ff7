"""The pictures of docs/simulation/data.md: ``python -m tests.docs.partition_pictures`` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from atoll.simulation import data

FOLDER = Path(__file__).parents[2] / "docs" / "simulation" / "data"


def pictures() -> Iterator[tuple[str, str]]:
    """The name of each file, and the picture."""
    digits = data.load_sklearn("digits")
    labels, rows = digits.labels, len(digits)
    weights = data.power_law_weights(population=10, classes=10, seed=1)
    made = {
        "iid": data.iid(rows, population=10, seed=1),
        "by_sizes": data.by_sizes(rows, sizes=[300, 300, 300, 50, 50, 50, 50, 50, 300, 300], seed=1),
        "linear_sizes": data.linear_sizes(rows, population=10, seed=1),
        "square_sizes": data.square_sizes(rows, population=10, seed=1),
        "exponential_sizes": data.exponential_sizes(rows, population=8, seed=1),
        "dirichlet": data.dirichlet(labels, population=10, alpha=0.3, seed=1),
        "inner_dirichlet": data.inner_dirichlet(labels, sizes=[179] * 10, alpha=0.3, seed=1),
        "distribution": data.distribution(labels, weights=weights, min_per_class=5, seed=1),
        "pathological": data.pathological(
            labels, population=10, classes_per_participant=3, assignment="first_deterministic", seed=1
        ),
        "shards": data.shards(labels, population=10, shards_per_participant=2, seed=1),
        "continuous": data.continuous(digits.inputs.sum(axis=1), population=10, strictness=1.0, seed=1),
        "drift": drifting(labels),
    }
    for name, parts in made.items():
        yield f"{name}.svg", data.holdings(parts, labels).thumbnail()
    yield "who-holds-what.svg", data.holdings(made["dirichlet"], labels).heat_map()


def drifting(labels: data.Indices) -> data.Parts:
    """One participant's rows in each of ten rounds."""
    start, end = np.zeros((2, 1, 10))
    start[0, :3], end[0, 6:] = 1.0, 1.0
    moving = data.drift(labels, start=start, end=end, size=100, seed=1)
    return tuple(moving.part(0, data.incremental(number, rounds=10)) for number in range(10))


if __name__ == "__main__":
    for name, picture in pictures():
        (FOLDER / name).write_text(f"{picture}\n", encoding="utf-8")
