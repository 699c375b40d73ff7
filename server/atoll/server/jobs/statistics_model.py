"""The model of a run of statistics, which follows from its query: layout, initial values, and updates by rounds."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atoll.server.errors import InvalidRequestError
from atoll.statistics import AnswersError, Disclosure, first_state, release_noised, state_shapes
from atoll.wire.layout import Dtype, Layout, TensorSpec

if TYPE_CHECKING:
    from atoll.server.jobs.statistics_section import Statistics
    from atoll.server.jobs.tables import JobTables

Floats = npt.NDArray[np.float64]
Rewrite = Callable[[int, MutableMapping[str, Floats], int, float], None]
"""Changes a model before its release: takes the number of models released before, the tensors with the mean update
applied, the number of updates, and the standard deviation of the noise on each element of their sum."""


def statistics_layout(section: Statistics) -> Layout:
    """The layout of the model."""
    shapes = state_shapes(section.query)
    return Layout(tuple(TensorSpec(name, shape, Dtype.FLOAT64) for name, shape in shapes.items()))


def first_model(section: Statistics) -> dict[str, Floats]:
    """The initial model."""
    return first_state(section.query)


def check_statistics_layout(spec: JobTables, layout: Layout) -> None:
    """Check that a run of statistics begins with its query's model.

    Raises:
        InvalidRequestError: if it begins with another model.
    """
    if spec.statistics is not None and layout != statistics_layout(spec.statistics):
        raise InvalidRequestError(
            "job.statistics_model",
            "the initial model is not that of the job's [statistics]",
            "submit the job without a model: `atoll stats JOB.toml`, or Operator.submit(job)",
        )


def release_of(spec: JobTables) -> Rewrite | None:
    """The function that changes the model before its release; None if the mean update is the release.

    It raises ``InvalidRequestError`` if the round contradicts an earlier one.
    """
    if spec.statistics is None:
        return None
    release, divisor = Disclosure(spec.statistics.query), spec.cohort.size

    def rewrite(number: int, tensors: MutableMapping[str, Floats], updates: int, noise: float) -> None:
        if release.query.noised is not None:
            release_noised(tensors, updates, divisor, noise)
            return
        try:
            release.apply(number, tensors, updates)
        except AnswersError as error:
            raise InvalidRequestError("statistics.changed", str(error)) from error

    return rewrite
