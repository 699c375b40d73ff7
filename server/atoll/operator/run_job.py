"""The job of a run, as the server tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.operator.errors import BadInputError
from atoll.server.jobs import JobFileError, parse_job

if TYPE_CHECKING:
    from atoll.server.control import RunDetail
    from atoll.server.jobs import JobSpec


def job_of(detail: RunDetail) -> JobSpec:
    """Parse the job that a run was submitted with.

    Raises:
        BadInputError: if this version cannot read it.
    """
    try:
        return parse_job(detail.job_toml, f"the job of run {detail.run.run}")
    except JobFileError as error:
        raise BadInputError(str(error), "use the version of Atoll that submitted it") from error
