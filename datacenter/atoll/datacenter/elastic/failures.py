"""Which of several failed ranks is the cause, and what to say of it. Pure."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from atoll.datacenter.elastic.exits import Exit


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that has ended other than well.

    Attributes:
        rank: in the whole job.
        pid: its process.
        status: of the process; minus the signal that ended it.
        message: what it said itself, in a line or a few; empty if nothing.
        trace: where it happened, of an error that is not one of ours.
        first: whether it ended before anybody made others end.
    """

    rank: int
    pid: int
    status: int
    message: str
    trace: str
    first: bool

    def __str__(self) -> str:
        if self.status == Exit.FAILED and self.trace:
            return f"rank {self.rank}: {self.trace.rstrip()}"
        if self.message:
            return f"rank {self.rank}: {self.message.partition('Error: ')[2] or self.message}"
        if self.status < 0:
            return f"rank {self.rank} (pid {self.pid}) was ended by signal {-self.status} ({_signal(-self.status)})"
        return f"rank {self.rank} (pid {self.pid}) ended with status {self.status} and said nothing"


def cause(failures: Sequence[Failure]) -> Failure:
    """The one that the others follow from: not a lost connection if there is another, and of the first to end."""
    return min(failures, key=lambda failure: (failure.status == Exit.LOST_PEER, not failure.first, failure.rank))


def is_final(failures: Collection[Failure]) -> bool:
    """Whether starting again cannot help."""
    return any(failure.status == Exit.FINAL for failure in failures)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
