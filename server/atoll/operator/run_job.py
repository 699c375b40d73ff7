"""The job of a run, as sent by the server: parsed, or as keys and values."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.operator.errors import BadInputError
from atoll.server.jobs import JobFileError, parse_job
from atoll.server.jobs.refusals import has_secret_draw as secret_draw
from atoll.settings import Section

if TYPE_CHECKING:
    from atoll.server.control import RunDetail
    from atoll.server.jobs import JobSpec


def job_of(detail: RunDetail) -> JobSpec:
    """Parse a run's job.

    Raises:
        BadInputError: if this version cannot read it.
    """
    try:
        return parse_job(detail.job_toml, f"the job of run {detail.run.run}")
    except JobFileError as error:
        raise BadInputError(str(error), "use the version of Atoll that submitted it") from error


@dataclass(frozen=True)
class Promises:
    """Whether a job's draws are secret, and whether it promises differential privacy."""

    secret: bool
    private: bool


def promises(detail: RunDetail) -> Promises:
    """The privacy of a run's job; the most cautious answer if the job cannot be read here."""
    try:
        spec = parse_job(detail.job_toml)
    except JobFileError:
        return Promises(secret=bool(detail.job_toml), private=bool(detail.job_toml))
    return Promises(secret=secret_draw(spec), private=spec.privacy is not None)


def has_secret_draw(detail: RunDetail) -> bool:
    """Whether a run's draws are secret; True if its job cannot be read here."""
    return promises(detail).secret


def job_keys(job_toml: str, *, complete: bool = False) -> dict[str, object]:
    """The keys of a job file, dotted; ``complete``: with the defaults, if this version can read the job."""
    if complete:
        try:
            return flat(_every_key(parse_job(job_toml)))
        except JobFileError:
            pass  # a job of another version of Atoll: only the given keys are known
    try:
        return flat(tomllib.loads(job_toml))
    except (ValueError, RecursionError):
        return {}


def _every_key(section: Section) -> dict[str, object]:
    """The keys of a section with their defaults, sections in it as tables, without None."""
    found = {name: getattr(section, name) for name in type(section).model_fields}
    return {
        key: _every_key(item) if isinstance(item, Section) else item for key, item in found.items() if item is not None
    }


def flat(tables: Mapping[str, object]) -> dict[str, object]:
    """The values of tables in tables by dotted key."""
    found: dict[str, object] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{inner}": item for inner, item in flat(value).items()}
        else:
            found[key] = value
    return found
