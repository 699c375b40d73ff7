from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file

from atoll.server.demo import evaluator
from atoll.server.demo.data import load_digits, split
from atoll.server.demo.model import LAYOUT, write_initial_model

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_first_weights_are_as_the_layout_says_and_seeded(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_initial_model(tmp_path / name, seed)
    found = load_file(tmp_path / "a")
    assert {name: array.shape for name, array in found.items()} == {spec.name: spec.shape for spec in LAYOUT.tensors}
    assert abs(found["hidden.weight"].std() - np.sqrt(2 / 64)) < 0.01
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


def test_the_evaluator_agrees_with_plain_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = split(load_digits(), 8, 0.5, seed=1).held_out
    held_out.write(tmp_path / "held-out.npz", seed=1)
    monkeypatch.setenv(evaluator.HELD_OUT_VARIABLE, str(tmp_path / "held-out.npz"))
    write_initial_model(tmp_path / "model", seed=1)
    model = {name: array.astype(np.float64) for name, array in load_file(tmp_path / "model").items()}
    found = evaluator.evaluate(load_file(tmp_path / "model"))

    hidden = np.maximum(held_out.images @ model["hidden.weight"] + model["hidden.bias"], 0)
    odds = np.exp(hidden @ model["output.weight"] + model["output.bias"])
    chances = odds / odds.sum(axis=1, keepdims=True)
    assert found["accuracy"] == np.mean(chances.argmax(axis=1) == held_out.labels)
    assert np.isclose(found["loss"], -np.log(chances[np.arange(len(held_out)), held_out.labels]).mean(), rtol=1e-4)
