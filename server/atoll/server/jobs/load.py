"""Parse a job file into a valid ``JobSpec``, or raise one error that lists every problem."""

from __future__ import annotations

from atoll.server.jobs.errors import JobFileError
from atoll.server.jobs.spec import JobSpec
from atoll.settings import MAX_FILE_BYTES, SettingsFileError, parse

MAX_JOB_BYTES = MAX_FILE_BYTES


def parse_job(data: bytes | str, file: str = "job.toml") -> JobSpec:
    """Read and validate a job file.

    Args:
        data: the file's content, UTF-8 TOML, at most 256 KiB.
        file: its name, for messages only.

    Raises:
        JobFileError: lists every problem with file, line, key, value and what is allowed.
    """
    try:
        return parse(data, JobSpec, file)
    except SettingsFileError as error:
        raise JobFileError(error) from None
