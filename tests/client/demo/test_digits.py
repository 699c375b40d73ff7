from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from atoll.client.demo.digits import Digits, forward, log_softmax, loss_and_gradients
from atoll.client.testing import FakeRun, FakeServer

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client.demo.digits import Floats, Ints, Weights


@pytest.fixture
def weights() -> Weights:
    rng = np.random.default_rng(0)
    shapes = {"hidden.weight": (64, 64), "hidden.bias": (64,), "output.weight": (64, 10), "output.bias": (10,)}
    return {name: (0.1 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def batch() -> tuple[Floats, Ints]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((40, 64)).astype(np.float32), rng.integers(0, 10, 40)


def test_gradients_agree_with_finite_differences(weights: Weights, batch: tuple[Floats, Ints]) -> None:
    images, labels = batch
    exact = {name: values.astype(np.float64) for name, values in weights.items()}

    def loss() -> float:
        logits, _ = forward(exact, images.astype(np.float64))  # type: ignore[arg-type]  # in double precision
        return float(-np.mean(log_softmax(logits)[np.arange(len(labels)), labels]))

    _, gradients = loss_and_gradients(weights, images, labels)
    for name, gradient in gradients.items():
        place = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        values, step = exact[name], 1e-5
        values[place] += step
        above = loss()
        values[place] -= 2 * step
        slope = (above - loss()) / (2 * step)
        values[place] += step
        assert slope == pytest.approx(gradient[place], rel=1e-3), name


def test_a_shard_is_split_nine_to_one(tmp_path: Path, batch: tuple[Floats, Ints]) -> None:
    path = tmp_path / "shard.npz"
    np.savez(path, images=batch[0], labels=batch[1], seed=np.int64(3))
    assert Digits(str(path)).examples == 36


def test_training_together_lowers_the_loss_and_is_reproducible(tmp_path: Path, weights: Weights) -> None:
    rng = np.random.default_rng(2)
    centres = rng.standard_normal((10, 64))
    for number in range(2):
        labels = rng.integers(0, 10, 200)
        images = (centres[labels] + 0.3 * rng.standard_normal((200, 64))).astype(np.float32)
        np.savez(tmp_path / f"{number}.npz", images=images, labels=labels, seed=np.int64(number))

    def play() -> FakeRun:
        trainers = [Digits(str(tmp_path / f"{number}.npz")) for number in range(2)]
        return FakeServer(weights).run(*trainers, rounds=3, settings={"epochs": 2, "proximal_mu": 0.01})

    first, again = play(), play()
    assert first.rounds[-1].reports[0].evaluation["accuracy"] > 0.9 > first.rounds[0].reports[0].evaluation["accuracy"]
    assert first.rounds[-1].reports[0].weight == 180
    assert all(np.array_equal(first.model[name], again.model[name]) for name in weights)


def test_told_to_stop_it_reports_what_it_has_done(tmp_path: Path, weights: Weights, batch: tuple[Floats, Ints]) -> None:
    np.savez(tmp_path / "shard.npz", images=batch[0], labels=batch[1], seed=np.int64(3))
    (played,) = FakeServer(weights, window_s=0.0).run(Digits(str(tmp_path / "shard.npz"))).rounds
    (report,) = played.reports
    assert (report.partial, report.weight) == (True, 16)


def test_a_shard_with_pickles_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.npz"
    np.savez(path, images=np.array([{}]), labels=np.zeros(1), seed=np.int64(3))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Digits(str(path))
