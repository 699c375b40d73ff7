"""The workloads' data: scikit-learn's digits, and Fashion-MNIST or data of its shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from atoll.simulation import data

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""The folder in which Debian's dataset-fashion-mnist installs it."""
_TEST = 5  # each fifth row


def save_digits(path: Path, *, population: int, size: int, rounds: int) -> None:
    """A small network on 8 x 8 digits, divided at random."""
    pixels, labels = load_digits(return_X_y=True)
    _save(path, pixels / 16, labels, population=population, hidden=32, size=size, rounds=rounds)


def save_lr_mnist(path: Path, *, population: int, size: int, rounds: int) -> str:
    """Logistic regression on 28 x 28 images, as FLUTE's lr_mnist; also returns a description of the images."""
    if FASHION.is_dir():
        found, said = data.load_idx(FASHION), "Fashion-MNIST"
        x, y = found.inputs.reshape(len(found.labels), -1) / 255, found.labels
    else:
        said = "random images of MNIST's shape"
        random = np.random.default_rng(2)
        y = random.integers(10, size=60_000)
        centres = random.random((10, 784), np.float32)
        x = centres[y] + random.standard_normal((60_000, 784), np.float32) / 2
    _save(path, x, y, population=population, hidden=0, size=size, rounds=rounds)
    return said


def _save(
    path: Path,
    x: npt.NDArray[np.floating],
    y: npt.NDArray[np.integer],
    *,
    population: int,
    hidden: int,
    size: int,
    rounds: int,
) -> None:
    """A file for ``Workload.read``: rows in a random order, in equal parts."""
    order = np.random.default_rng(3).permutation(len(x))
    test = np.arange(len(x)) % _TEST == 0
    held_out, mine = order[test], order[~test]
    np.savez(
        path,
        hidden=hidden,
        size=size,
        rounds=rounds,
        x=x[mine].astype(np.float32),
        y=y[mine].astype(np.int64),
        starts=np.linspace(0, len(mine), population + 1).astype(np.int64),
        x_test=x[held_out].astype(np.float32),
        y_test=y[held_out].astype(np.int64),
    )
