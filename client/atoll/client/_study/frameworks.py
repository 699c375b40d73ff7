"""Framework-specific parts of a new study: settings, columns, and the first model of a run.

The first model is drawn here and not by the study's own code, so a study can be created, and a job checked, without the
framework installed. ``tests/client/_study`` compares its tensors with those of the participant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
_CANCER = tuple(
    f"mean {what}"
    for what in (
        *("radius", "texture", "perimeter", "area", "smoothness"),
        *("compactness", "concavity", "concave points", "symmetry", "fractal dimension"),
    )
)
"""The first ten columns of scikit-learn's breast-cancer data."""
_CANCER_ROWS = "scikit-learn's breast-cancer data, every third row at each site"
_HIDDEN = 16


@dataclass(frozen=True)
class Framework:
    """One choice of ``--framework``.

    Attributes:
        name: also of the folder of its templates.
        extras: of Atoll, which its commands need.
        modules: modules that its participant imports and the base installation lacks.
        rows: description of the bundled rows.
        columns: the numeric columns of its table.
        labels: of its table's column ``label``.
        lr: the learning rate of its job.
        initial: makes the first model.
    """

    name: str
    extras: str
    modules: tuple[str, ...]
    rows: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    lr: float
    initial: Callable[[], Arrays]


def _numpy_model() -> Arrays:
    return {"weight": np.zeros(3, np.float32), "bias": np.zeros(1, np.float32)}


def _sklearn_model() -> Arrays:
    return {"coef": np.zeros((1, len(_CANCER)), np.float32), "intercept": np.zeros(1, np.float32)}


def _torch_model() -> Arrays:
    """Two linear layers under PyTorch's names, drawn like PyTorch's: uniform within 1 / sqrt(inputs)."""
    rng = np.random.default_rng(0)

    def linear(name: str, inputs: int, outputs: int) -> dict[str, npt.NDArray[Any]]:
        bound = inputs**-0.5
        weight, bias = rng.uniform(-bound, bound, (outputs, inputs)), rng.uniform(-bound, bound, outputs)
        return {f"{name}.weight": weight.astype(np.float32), f"{name}.bias": bias.astype(np.float32)}

    return {**linear("0", len(_CANCER), _HIDDEN), **linear("2", _HIDDEN, 2)}


FRAMEWORKS: Mapping[str, Framework] = {
    one.name: one
    for one in (
        Framework(
            "numpy",
            extras="server",
            modules=(),
            rows="rows that are drawn",
            columns=("age", "pressure", "sugar"),
            labels=("healthy", "ill"),
            lr=0.5,
            initial=_numpy_model,
        ),
        Framework(
            "sklearn",
            extras="demo",
            modules=("sklearn",),
            rows=_CANCER_ROWS,
            columns=_CANCER,
            labels=("malignant", "benign"),
            lr=0.1,
            initial=_sklearn_model,
        ),
        Framework(
            "torch",
            extras="demo,torch",
            modules=("sklearn", "torch"),
            rows=_CANCER_ROWS,
            columns=_CANCER,
            labels=("malignant", "benign"),
            lr=0.1,
            initial=_torch_model,
        ),
    )
}
"""The frameworks by name."""
