"""The demo's network: its layout and first weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from atoll.wire import safetensors
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


def write_initial_model(path: Path, seed: int) -> None:
    """Write first weights: normal with variance 2 / inputs (He et al. 2015), biases zero."""
    rng = np.random.default_rng(seed)
    chunks = []
    for spec in LAYOUT.tensors:
        weights = len(spec.shape) > 1
        drawn = rng.standard_normal(spec.shape) * np.sqrt(2.0 / spec.shape[0]) if weights else np.zeros(spec.shape)
        chunks.append(drawn.astype("<f4").tobytes())
    safetensors.write(path, LAYOUT, chunks)
