"""The demo's network: its layout and initial weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from atoll.formats import safetensors
from atoll.wire.layout import Dtype, Layout, TensorSpec

INPUTS, HIDDEN, OUTPUTS = 64, 64, 10
LAYOUT = Layout(
    (
        TensorSpec("hidden.weight", (INPUTS, HIDDEN), Dtype.FLOAT32),
        TensorSpec("hidden.bias", (HIDDEN,), Dtype.FLOAT32),
        TensorSpec("output.weight", (HIDDEN, OUTPUTS), Dtype.FLOAT32),
        TensorSpec("output.bias", (OUTPUTS,), Dtype.FLOAT32),
    )
)


def initial_weights(seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Initial weights by name: normal with variance 2 / inputs (He et al. 2015), biases zero."""
    rng = np.random.default_rng(seed)
    drawn = {}
    for spec in LAYOUT.tensors:
        weights = len(spec.shape) > 1
        values = rng.standard_normal(spec.shape) * np.sqrt(2.0 / spec.shape[0]) if weights else np.zeros(spec.shape)
        drawn[spec.name] = values.astype(np.float32)
    return drawn


def write_initial_model(path: Path, seed: int) -> None:
    """Write the initial weights to a file."""
    drawn = initial_weights(seed)
    safetensors.write(path, LAYOUT, [drawn[spec.name].astype("<f4").tobytes() for spec in LAYOUT.tensors])
