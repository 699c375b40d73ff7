"""What goes wrong in a silo's training job.

::

    DatacenterError        base; its text names the values and the remedy
    ├── CheckpointError    a checkpoint cannot be written, is damaged, or is of another model
    ├── FederationError    the server does not take this silo, or is out of reach for too long
    ├── DataError          what is learned from: missing, damaged, too little, or not what the job began with
    ├── LayoutError        the job does not fit the machines, or itself: found before any process starts
    ├── MissingExtraError  an optional library is needed and not installed
    └── TrainingError      something went wrong while training
        ├── HungError      a collective did not end in time
        ├── LostPeerError  another rank is gone
        └── StoppedError   a signal ended the job without a last checkpoint
"""

from __future__ import annotations

import signal

from atoll.wire.installing import install_hint


class DatacenterError(Exception):
    """Base of everything that this package raises by itself.

    Attributes:
        exit_code: of a command that ends with it.
    """

    exit_code = 1


class CheckpointError(DatacenterError):
    """A checkpoint that cannot be written, is damaged, or does not belong to the job."""

    exit_code = 2


class DataError(DatacenterError):
    """Data that cannot be trained on: missing, damaged, too little, or other than what the job began with."""

    exit_code = 2


class FederationError(DatacenterError):
    """The silo cannot take part any more: not accepted by the server, or the server is out of reach for too long."""


class LayoutError(DatacenterError):
    """A job that cannot be cut as it asks.

    Attributes:
        problems: everything that is wrong, one sentence each, with the numbers.
    """

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class MissingExtraError(DatacenterError):
    """An optional library is needed.

    Attributes:
        extra: what to install: an extra of Atoll.
    """

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        self.extra = extra
        super().__init__(f"{purpose} needs {library}: {install_hint(extra)}")


class TrainingError(DatacenterError):
    """Training cannot go on."""


class HungError(TrainingError):
    """A collective did not end in time; says which, and who has not arrived."""


class LostPeerError(TrainingError):
    """Another rank is gone: a symptom, whose cause is told by that one or by the launcher."""


class StoppedError(TrainingError):
    """A signal has ended the job, and there is no last checkpoint.

    Attributes:
        exit_code: 128 + the signal.
    """

    def __init__(self, asked: signal.Signals, how: str) -> None:
        self.exit_code = 128 + asked
        super().__init__(f"ended by {asked.name} {how}")
