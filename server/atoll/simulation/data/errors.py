"""Errors of ``atoll.simulation.data``: a branch of the errors of a simulation.

::

    DataError                a SimulationError; the message names the value and the remedy
    ├── PartitionError       rows or columns cannot be divided as asked
    ├── FormatError          a file is missing, damaged, or not in the format of its loader
    └── MissingLibraryError  a loader needs a library that is not installed
"""

from __future__ import annotations

from atoll.simulation.errors import SimulationError
from atoll.text.installing import install_hint


class DataError(SimulationError):
    """Base class of the errors that this package raises."""


class PartitionError(DataError, ValueError):
    """Rows or columns cannot be divided as asked."""


class FormatError(DataError):
    """A file is missing, damaged, or not in the format of its loader."""


class MissingLibraryError(DataError, ImportError):
    """A loader needs a library that is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"this loader needs {library}: {install_hint(extra)}")


class DataWarning(UserWarning):
    """A partition leaves out a whole class, which may be unintended."""
