"""Evaluator of the demonstration's server: ``--evaluator text=atoll.datacenter.demo.evaluator:evaluate``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from atoll.datacenter.job import load_job
from atoll.datacenter.models import spec_of

if TYPE_CHECKING:
    from atoll.datacenter.models.spec import ModelSpec

HELD_OUT_VARIABLE = "ATOLL_DEMO_HELD_OUT"
"""Environment variable with the path of an .npy file: uint8 ``[rows, length]``."""
JOB_VARIABLE = "ATOLL_DEMO_JOB"
"""Environment variable with the path of a job file, for its model."""


def evaluate(model: Mapping[str, npt.NDArray[np.generic]]) -> Mapping[str, float]:
    """Return the mean cross-entropy, in nats per byte, of each held-out byte given the earlier bytes of its row."""
    spec, module = _module(Path(os.environ[JOB_VARIABLE]))
    rows = torch.from_numpy(np.load(os.environ[HELD_OUT_VARIABLE], allow_pickle=False)).long()
    return {"loss": held_out_loss(spec, module, {name: torch.tensor(value) for name, value in model.items()}, rows)}


@torch.no_grad()
def held_out_loss(spec: ModelSpec, module: nn.Module, weights: Mapping[str, Tensor], rows: Tensor) -> float:
    """Return the loss of a model with these weights.

    Args:
        spec: spec of the model.
        module: module built by the spec; its weights are replaced.
        weights: weights by name.
        rows: int64 ``[rows, length]``.
    """
    module.load_state_dict(weights)
    return float(spec.loss(module(rows[:, :-1]), rows[:, 1:])) / rows[:, 1:].numel()


@cache
def _module(job: Path) -> tuple[ModelSpec, nn.Module]:
    spec = spec_of(load_job(job).model)
    return spec, spec.build()
