"""Values exchanged between a simulation and the processes that run its tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import fsum, sqrt
from pathlib import Path

from atoll.server.ingest.node import SumKey
from atoll.server.rounds import RunPolicy
from atoll.simulation.errors import SimulationError


@dataclass(frozen=True, slots=True)
class Facts:
    """A participant's declarations at check-in."""

    examples: int
    can_evaluate: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """One attempt at a round, as described by its invitations.

    Attributes:
        key: run, round and attempt.
        shared: the common part of all invitations, serialised.
        model: the file that begins with the model's bytes.
        sum_key: the sum of a train round; None for an evaluation.
        policy: of the updates' weights.
        keep: whether updates are kept until the round is dropped, because a later round may take them.
    """

    key: tuple[str, int, int]
    shared: bytes
    model: Path
    sum_key: SumKey | None
    policy: RunPolicy
    keep: bool

    def ends_with(self, through: tuple[int, int]) -> bool:
        """Whether none of its tasks can count once the rounds up to this attempt are dropped."""
        late = self.policy.straggler.late.max_staleness if self.keep else 0
        number, attempt = self.key[1:]
        return (number + 2 * late, attempt) <= through


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """The task of one member.

    Attributes:
        participant: its name.
        seed: the factory's argument.
        own: the member-specific fields of its invitation, serialised.
        before: the state of its files at the start; empty: the first one.
        after: the state of its files at the end; see ``ParticipantFolders``.
    """

    participant: str
    seed: int | str
    own: bytes
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """A report due if its task succeeds, or a drop-out; ordered by the virtual second."""

    at: float
    number: int
    request: TaskRequest = field(compare=False)
    reports: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a task; exactly one of ``report``, ``declined`` and ``failure`` is not empty.

    Attributes:
        participant: its name.
        seconds: its duration.
        report: the serialised report.
        payload_bytes: encoded size of the update.
        squares: sums of squares of the update's chunks, for its norm.
        rejection: why the server refuses the update.
        declined: the participant's reason to decline the task.
        failure: the description of a failure for the server.
        traceback: of the participant's code, if it failed.
        keeps_files: whether the participant keeps files, which are now in the state ``TaskRequest.after``.
    """

    participant: str
    seconds: float = 0.0
    report: bytes = b""
    payload_bytes: int = 0
    squares: tuple[float, ...] = ()
    rejection: str = ""
    declined: str = ""
    failure: str = ""
    traceback: str = ""
    keeps_files: bool = False

    @property
    def norm(self) -> float:
        """Euclidean norm of the update."""
        return sqrt(fsum(self.squares))


class RoundOverError(SimulationError):
    """A task's round is over, so the task can no longer count."""
