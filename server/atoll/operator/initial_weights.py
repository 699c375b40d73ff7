"""The initial weights that a job names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.server.jobs import JobSpec, first_model

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.operator.models import Weights


def initial_of(spec: JobSpec, folder: Path) -> Weights | None:
    """The initial weights of a run of this job; None if the job does not name any.

    Args:
        spec: the job.
        folder: to which the path of its file of initial weights is relative.
    """
    if spec.statistics is not None:
        return first_model(spec.statistics)
    return initial_file(spec, folder)


def initial_file(spec: JobSpec, folder: Path) -> Path | None:
    """The file of initial weights that a job names, relative to ``folder``; None if it names none."""
    return None if spec.model is None else folder / spec.model.initial
