"""Jobs that differ from another job in some keys, for sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from atoll.server.jobs.errors import JobFileError
from atoll.server.jobs.job import Job
from atoll.server.jobs.spec import JobSpec
from atoll.settings import Section, described, given

_FREE = "training"
"""The section whose keys are free and may contain dots."""


def changed(job: JobSpec, changes: Mapping[str, object], source: str = "Job") -> Job:
    """A job with changed values; dependent defaults (``cohort.quorum`` of ``cohort.size``) are derived again.

    Args:
        job: the original job.
        changes: values by dotted key, for example ``{"optimiser.lr": 0.01}``; a whole section by its name.
        source: the name of these values in errors.

    Raises:
        JobFileError: lists every problem with its key, value and what is allowed.
    """
    tables: dict[str, Any] = {name: as_table(item) for name, item in given(job).items()}
    for key, value in changes.items():
        _put(tables, key, as_table(value))
    try:
        return Job.of(JobSpec.model_validate(tables))
    except ValidationError as error:
        raise JobFileError(described(error, JobSpec, tables, source, {})) from None


def as_table(value: object) -> Any:
    """A section as the table that a file would have; other values unchanged."""
    if isinstance(value, Section):
        return given(value)
    return {key: as_table(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _put(tables: dict[str, Any], key: str, value: object) -> None:
    first, _, rest = key.partition(".")
    if not rest:
        tables[first] = value
        return
    inner = tables.setdefault(first, {})
    if not isinstance(inner, dict):  # a parent key that is not a section: the validation refuses it by name
        tables[first] = inner = {}
    if first == _FREE:
        inner[rest] = value
    else:
        _put(inner, rest, value)
