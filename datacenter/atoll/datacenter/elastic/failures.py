"""Find the cause among several failed ranks, and describe it. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from atoll.datacenter.elastic.exits import Exit

_ADDRESS = re.compile("0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that ended with an error.

    Attributes:
        rank: number in the whole job.
        pid: process of the rank.
        status: exit status; negative: the signal that ended it.
        message: the rank's own message, a few lines at most; empty if there is none.
        trace: traceback of an error that is not one of ours.
        first: whether it ended before the launcher ended any rank.
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
    """Return the root cause: one of the first ranks to end, and if possible not a lost connection."""
    return min(failures, key=lambda failure: (failure.status == Exit.LOST_PEER, not failure.first, failure.rank))


def is_repeated(failure: Failure, before: Failure | None) -> bool:
    """Return whether an attempt failed like the previous one: with the same error and trace in the same step.

    Such an error comes from the job's code or data, and a further restart would hit it again.
    """
    return before is not None and failure.trace != "" and _comparable(failure.trace) == _comparable(before.trace)


def _comparable(trace: str) -> str:
    """Return a traceback without the addresses of objects, which differ between processes."""
    return _ADDRESS.sub("0x", trace)


def is_final(failures: Collection[Failure]) -> bool:
    """Return whether a restart cannot help."""
    return any(failure.status == Exit.FINAL for failure in failures)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
