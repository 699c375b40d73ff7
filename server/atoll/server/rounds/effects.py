"""Effects: what the shell must do after a step, in the order given, once the event is durable.

Every effect may be issued again (by `resume`, or for a repeated event), so each must be idempotent.
These are answered by an event: `DrawCohort` → `CohortDrawn`, `PrepareRound` → `RoundPrepared`,
`StartDeadline` → `DeadlinePassed`, `Aggregate` → `Aggregated`, `ChargeAndStore` → `Charged`, `Publish` → `Published`,
`StartRetry` → `RetryDue`. `EffectFailed` answers an effect that has failed for good; `BudgetSpent` answers a draw or a
charge that the remaining privacy budget does not cover.
"""

from dataclasses import dataclass
from enum import StrEnum

from atoll.server.rounds.roster import Member
from atoll.server.rounds.run_state import Carried, Contribution, RoundKind, RoundState, RunStatus
from atoll.server.rounds.updates import RoundKey, UpdateRef


@dataclass(frozen=True, slots=True)
class DrawCohort:
    """Draw a cohort when enough participants are online. A newer request for the same key replaces an unanswered one.

    Attributes:
        key: the round to draw for.
        kind: train or evaluate.
        invited: participants wanted, over-selection included (Poisson samplers have their own rate).
        needed: fewest participants with which the quorum can be met.
        excluded: participants whose carried update waits for this round, sorted.
        planned_round: the round number that seeds the draw; see ``lifecycle.planned_round``.
    """

    key: RoundKey
    kind: RoundKind
    invited: int
    needed: int
    excluded: tuple[str, ...]
    planned_round: int


@dataclass(frozen=True, slots=True)
class PrepareRound:
    """Choose the report window and the integer grid.

    Attributes:
        key: the round to prepare.
        kind: train or evaluate; only a train round has a grid.
        members: (participant, declared weight).
        carried: late updates that count as soon as the round opens.
        total_weight: upper bound on the sum of their weights, in units before the grid's shift.
    """

    key: RoundKey
    kind: RoundKind
    members: tuple[tuple[str, int], ...]
    carried: tuple[Carried, ...]
    total_weight: int


@dataclass(frozen=True, slots=True)
class Invite:
    """Push the round's task to these participants now, and again when one reconnects."""

    key: RoundKey
    participants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell these participants to stop working on the round."""

    key: RoundKey
    participants: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class StartDeadline:
    """Fire `DeadlinePassed` after `remaining_s` seconds of a monotonic clock; `deadline_at` (epoch) is for display."""

    key: RoundKey
    deadline_at: float
    remaining_s: float


@dataclass(frozen=True, slots=True)
class Fold:
    """Add `weight` times the update to the sum of round `key`, once. A carried update has an earlier round's key."""

    key: RoundKey
    update: UpdateRef
    weight: int


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Make the round's result from exactly these contributions: fold the missing ones, leave out all others."""

    key: RoundKey
    kind: RoundKind
    contributions: tuple[Contribution, ...]
    total_weight: int


@dataclass(frozen=True, slots=True)
class ChargeAndStore:
    """In one transaction, charge the privacy ledger for the round and store its result, which is not yet visible."""

    key: RoundKey
    kind: RoundKind
    digest: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Make the charged result visible."""

    key: RoundKey
    kind: RoundKind
    digest: str


@dataclass(frozen=True, slots=True)
class StartRetry:
    """Fire `RetryDue` after `delay_s` seconds."""

    key: RoundKey
    delay_s: float


class Verdict(StrEnum):
    """The outcome of a report."""

    COUNTED = "counted"
    CARRIED = "carried"
    LATE = "late"
    REJECTED = "rejected"
    CONFLICT = "conflict"
    """An earlier, different report was acknowledged; it stands."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Answer a participant's report: COUNTED and CARRIED acknowledge it, the other verdicts refuse it."""

    key: RoundKey
    participant: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class RecordRound:
    """Write this ended round, with each member's status and reason, to the run's history."""

    round: RoundState


@dataclass(frozen=True, slots=True)
class RecordMember:
    """Rewrite a member's record in a closed round: its report came late, or its carried update was used or dropped."""

    key: RoundKey
    member: Member


@dataclass(frozen=True, slots=True)
class DropSpools:
    """Delete the uploads of every round up to and including `through`, except those in `keep`."""

    through: RoundKey
    keep: tuple[tuple[RoundKey, str], ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The run has ended."""

    status: RunStatus
    reason: str


Effect = (
    DrawCohort
    | PrepareRound
    | Invite
    | Stop
    | StartDeadline
    | Fold
    | Aggregate
    | ChargeAndStore
    | Publish
    | StartRetry
    | Receipt
    | RecordRound
    | RecordMember
    | DropSpools
    | Finish
)
