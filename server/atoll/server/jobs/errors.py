"""Errors of the job file.

::

    InvalidRequestError (atoll.server.errors)
    └── JobFileError          the operator's fault: too large, not UTF-8, not TOML, or with problems (all are listed)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.server.errors import InvalidRequestError

if TYPE_CHECKING:
    from atoll.settings import SettingsFileError


class JobFileError(InvalidRequestError):
    """A job file with problems, listed one per line."""

    def __init__(self, error: SettingsFileError) -> None:
        self.file = error.file
        self.problems = error.problems
        super().__init__("job.invalid", str(error), "correct the job and submit it again")
