"""Wrap the function that evaluates released models (``Federation.run(evaluate=...)``) as a server evaluator."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.server.runs.evaluators import Evaluator, InPlace
from atoll.simulation.errors import EvaluateError

Evaluate = Callable[[Mapping[str, npt.NDArray[Any]]], Mapping[str, float] | float]
SCORE = "score"
"""Name of the figure if the function returns one number."""


class NotFiniteWarning(UserWarning):
    """``evaluate`` returned a value that is not finite, which the history cannot contain."""


def evaluator_of(evaluate: Evaluate, fail: Callable[[EvaluateError], None]) -> Evaluator:
    """An evaluator whose first exception ends the simulation.

    Args:
        evaluate: returns figures by name, or one number.
        fail: called with the error that ends the simulation.
    """

    def judged(model: Mapping[str, npt.NDArray[np.generic]]) -> Mapping[str, float]:
        try:
            found = evaluate(model)
            figures = found if isinstance(found, Mapping) else {SCORE: found}
            given = {str(name): float(value) for name, value in figures.items()}
        except Exception as error:  # noqa: BLE001 - any error of the user's function ends the simulation
            ended = EvaluateError(f"{type(error).__name__}: {error}", traceback.format_exc())
            ended.__cause__ = error
            fail(ended)
            return {}
        for name, value in given.items():
            if not math.isfinite(value):
                warnings.warn(
                    f"evaluate gave {name} = {value}; the history leaves it out, and names it as the round's reason",
                    NotFiniteWarning,
                    stacklevel=1,
                )
        return given

    return InPlace(judged)
