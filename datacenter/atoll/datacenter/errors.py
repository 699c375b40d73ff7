"""Errors of a silo's training job.

::

    DatacenterError        base class; the message names the values and the remedy
    ├── CheckpointError    a checkpoint cannot be written, is damaged, or belongs to another model
    ├── FederationError    the server rejects this silo, or has been unreachable for too long
    ├── DataError          training data is missing, damaged, too little, or not what the job began with
    ├── LayoutError        the job does not fit the machines, or contradicts itself; raised before any process starts
    ├── MissingExtraError  an optional library is needed and not installed
    └── TrainingError      training failed
        ├── HungError      a collective did not end in time
        ├── LostPeerError  another rank is gone
        └── StoppedError   a signal ended the job without a last checkpoint
"""

from __future__ import annotations

import signal

from atoll.text.installing import install_hint


class DatacenterError(Exception):
    """Base class of the errors that this package raises.

    Attributes:
        exit_code: exit status of a command that ends with this error.
    """

    exit_code = 1


class CheckpointError(DatacenterError):
    """A checkpoint cannot be written, is damaged, or does not belong to the job."""

    exit_code = 2


class DataError(DatacenterError):
    """Training data is missing, damaged, too little, or differs from what the job began with."""

    exit_code = 2


class FederationError(DatacenterError):
    """The silo cannot take part any longer: the server rejects it, or has been unreachable for too long."""


class LayoutError(DatacenterError):
    """The layout that the job asks for is not possible.

    Attributes:
        problems: every problem, one sentence each, with the numbers.
    """

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class MissingExtraError(DatacenterError):
    """An optional library is needed and not installed.

    Attributes:
        extra: the extra of Atoll that installs it.
    """

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        self.extra = extra
        super().__init__(f"{purpose} needs {library}: {install_hint(extra)}")


class TrainingError(DatacenterError):
    """Training cannot continue."""


class HungError(TrainingError):
    """A collective did not end in time; the message names it and the ranks that have not arrived."""


class LostPeerError(TrainingError):
    """Another rank is gone. This is a symptom: that rank, or the launcher, reports the cause."""


class StoppedError(TrainingError):
    """A signal ended the job before it could write a last checkpoint.

    Attributes:
        exit_code: 128 + the signal's number.
    """

    def __init__(self, asked: signal.Signals, how: str) -> None:
        self.exit_code = 128 + asked
        super().__init__(f"ended by {asked.name} {how}")
