"""The figures in the model of a statistics run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atoll.operator.errors import BadInputError
from atoll.statistics import Findings, FindingsError
from atoll.text.figures import counted

if TYPE_CHECKING:
    import numpy.typing as npt

    from atoll.server.control import RunDetail
    from atoll.server.jobs import JobSpec


def rows_words(found: Findings) -> str:
    """The number of rows, in a private run with its standard error."""
    return counted(found.rows, "row") if found.noise is None else f"{found.rows} ± {found.noise:.2g} rows"


def findings_of(job: JobSpec, model: Mapping[str, npt.NDArray[Any]]) -> Findings:
    """The figures that a run of this job has released.

    Raises:
        BadInputError: if the job has no statistics, the run has not finished, or its rounds counted different rows.
    """
    if job.statistics is None:
        raise BadInputError(
            f"job {job.job.name!r} trains a model and has no statistics", "submit one with [statistics]"
        )
    try:
        return Findings.of(job.statistics.query, model)
    except FindingsError as error:
        raise BadInputError(str(error)) from error


def has_findings(detail: RunDetail) -> bool:
    """Whether a run is a finished statistics run."""
    return detail.run.status == "finished" and "statistics" in tomllib.loads(detail.job_toml)
