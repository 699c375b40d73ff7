"""The base class of a job's tables, with the same errors in Python as in a job file, and shared limits."""

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
        JobFileError: if values are not allowed; lists every problem with its key.
    """

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise JobFileError(described(error, type(self), values, type(self).__name__, {})) from None

    # Makes pydantic itself validate tables within tables, as for a file.
    __init__.__dict__["__pydantic_base_init__"] = True
