"""The demo's evaluator, as an operator would write one: ``--evaluator digits=atoll.server.demo.evaluator:evaluate``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HELD_OUT_VARIABLE = "ATOLL_DEMO_HELD_OUT"
"""Environment variable that names the .npz file with ``images`` float32 (n, 64) and ``labels`` int64 (n,)."""

Array = npt.NDArray[Any]


def evaluate(model: Mapping[str, Array]) -> Mapping[str, float]:
    """Accuracy and mean cross-entropy of the model on the held-out digits."""
    images, labels = _held_out(Path(os.environ[HELD_OUT_VARIABLE]))
    hidden = np.maximum(images @ model["hidden.weight"] + model["hidden.bias"], 0)
    logits = hidden @ model["output.weight"] + model["output.bias"]
    logits = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
    return {"accuracy": float(np.mean(logits.argmax(axis=1) == labels)), "loss": float(losses.mean())}


@cache
def _held_out(path: Path) -> tuple[Array, Array]:
    with np.load(path, allow_pickle=False) as data:
        return data["images"], data["labels"]
