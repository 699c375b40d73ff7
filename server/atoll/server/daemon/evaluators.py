"""Evaluators: the operator's own code that judges released models on the server.

An evaluator is installed by name on the server's command line (``--evaluator NAME=MODULE:FUNCTION``); a job can only
name it. Nothing that comes over the network is ever imported.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import numpy.typing as npt

from atoll.server.errors import InvalidRequestError
from atoll.wire.encoding import bfloat16_to_float32
from atoll.wire.layout import Dtype, Layout
from atoll.wire.views import tensor_views

Evaluator = Callable[[Mapping[str, npt.NDArray[np.generic]]], Mapping[str, float]]
"""Takes the model, name → array (read-only; bfloat16 widened to float32), gives metric name → finite value."""


def load_evaluators(specifications: tuple[str, ...]) -> dict[str, Evaluator]:
    """Import the evaluators given as ``NAME=MODULE:FUNCTION``.

    Raises:
        InvalidRequestError: for one that cannot be read or imported.
    """
    evaluators: dict[str, Evaluator] = {}
    for text in specifications:
        name, _, target = text.partition("=")
        module, _, function = target.partition(":")
        if not (name and module and function):
            raise InvalidRequestError("evaluator.form", f"evaluator {text!r}: needs the form NAME=MODULE:FUNCTION")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise InvalidRequestError("evaluator.import", f"evaluator {text!r} cannot be imported: {error}") from error
        if not callable(found):
            raise InvalidRequestError("evaluator.import", f"evaluator {text!r}: {target} cannot be called")
        evaluators[name] = cast("Evaluator", found)
    return evaluators


def run_evaluator(evaluator: Evaluator, layout: Layout, blob: memoryview) -> dict[str, float]:
    """Judge a model; blocks, so call it from a worker thread. Metric names get the prefix ``server/``.

    Raises:
        ValueError: if the evaluator gives a value that is not finite.
    """
    metrics: dict[str, float] = {}
    for name, value in evaluator(_widened(layout, blob)).items():
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"the evaluator gave {name} = {number}; metrics must be finite")
        metrics[f"server/{name}"] = number
    return metrics


def _widened(layout: Layout, blob: memoryview) -> dict[str, npt.NDArray[np.generic]]:
    views = tensor_views(layout, blob)
    for spec in layout.tensors:
        if spec.dtype is Dtype.BFLOAT16:
            views[spec.name] = bfloat16_to_float32(views[spec.name].view(np.uint16))
    return views
