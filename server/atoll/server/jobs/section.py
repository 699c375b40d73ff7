"""The base class of a job's tables, whose errors in Python are those of a job file, and limits that several share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from atoll.server.jobs.errors import JobFileError
from atoll.settings import described
from atoll.settings.section import Section

MAX_ROUNDS = 1_000_000
MAX_SECONDS = 30 * 86_400

Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


class JobTable(Section):
    """A table of a job.

    Raises:
        JobFileError: if it is made with values that are not allowed: every problem with its key.
    """

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise JobFileError(described(error, type(self), values, type(self).__name__, {})) from None

    # Has pydantic validate tables within tables itself, as it does those of a file.
    __init__.__dict__["__pydantic_base_init__"] = True
