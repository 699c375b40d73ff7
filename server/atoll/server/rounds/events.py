"""What can happen to a run. Each event is a fact, persisted before anything is done about it.

`kind` is the tag by which a JSON mapper tells them apart: in pydantic's words,
`Annotated[Event, Field(discriminator="kind")]`.
"""

import math
from dataclasses import dataclass
from typing import Literal

from atoll.server.rounds.updates import Metrics, RoundKey, UpdateRef, check_metrics
from atoll.server.rounds.values import RoundGrid


@dataclass(frozen=True, slots=True)
class Started:
    """The run was submitted and its initial model is durable."""

    kind: Literal["started"] = "started"


@dataclass(frozen=True, slots=True)
class CohortDrawn:
    """Answer to `DrawCohort`: who takes part, as (participant, declared weight), and how they were chosen.

    Raises:
        ValueError: a participant is drawn twice, or declares a weight below 0.
    """

    key: RoundKey
    members: tuple[tuple[str, int], ...]
    eligible: int
    sampler: str
    seed: int
    kind: Literal["cohort_drawn"] = "cohort_drawn"

    def __post_init__(self) -> None:
        if len({participant for participant, _ in self.members}) != len(self.members):
            raise ValueError(
                f"round {self.key}: the cohort names a participant twice; a sampler draws each at most once"
            )
        for participant, weight in self.members:
            if weight < 0:
                raise ValueError(f"round {self.key}: {participant} declares weight {weight}; must be 0 or more")


@dataclass(frozen=True, slots=True)
class RoundPrepared:
    """Answer to `PrepareRound`: window, deadline and, for a train round with anyone to count, the grid.

    Raises:
        ValueError: the window is not a finite number of seconds above 0: every round has a deadline.
    """

    key: RoundKey
    window_s: float
    deadline_at: float
    grid: RoundGrid | None = None
    kind: Literal["round_prepared"] = "round_prepared"

    def __post_init__(self) -> None:
        if not 0 < self.window_s < math.inf:
            raise ValueError(f"round {self.key}: window_s = {self.window_s}: must be finite and above 0 seconds")


@dataclass(frozen=True, slots=True)
class Accepted:
    """A member takes the task."""

    key: RoundKey
    participant: str
    kind: Literal["accepted"] = "accepted"


@dataclass(frozen=True, slots=True)
class Declined:
    """A member will not take the task, and says why: its own policy, or other work."""

    key: RoundKey
    participant: str
    reason: str
    kind: Literal["declined"] = "declined"


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """A member says that its training failed."""

    key: RoundKey
    participant: str
    reason: str
    kind: Literal["member_failed"] = "member_failed"


@dataclass(frozen=True, slots=True)
class WentSilent:
    """A member's connection is lost for longer than the shell's patience."""

    key: RoundKey
    participant: str
    reason: str
    kind: Literal["went_silent"] = "went_silent"


@dataclass(frozen=True, slots=True)
class Reported:
    """A member's report is durable: an update (train) or metrics alone (evaluate).

    Raises:
        ValueError: the update is another's or another round's, the weight is negative, or a metric is not finite.
    """

    key: RoundKey
    participant: str
    update: UpdateRef | None
    weight: int
    metrics: Metrics = ()
    kind: Literal["reported"] = "reported"

    def __post_init__(self) -> None:
        check_metrics(self.metrics)
        if self.weight < 0:
            raise ValueError(
                f"round {self.key}: participant {self.participant} reports weight {self.weight}; must be 0 or more"
            )
        ref = self.update
        if ref is not None and (ref.key, ref.participant, ref.weight) != (self.key, self.participant, self.weight):
            raise ValueError(
                f"round {self.key}: {self.participant} reports with weight {self.weight} the update of round {ref.key} "
                f"by {ref.participant} with weight {ref.weight}; all three must agree"
            )


@dataclass(frozen=True, slots=True)
class Rejected:
    """A member's update cannot be used (not finite, out of range, wrong layout), found before or after its report.

    Attributes:
        key: the round that the update was made for, which for a carried one is an earlier round.
        participant: who made it.
        reason: what is wrong with it.
        unreported: it was refused while it was being sent. A participant may send anything at any time, so this touches
            nothing that was acknowledged; only damage that the server finds by itself does.
    """

    key: RoundKey
    participant: str
    reason: str
    unreported: bool = False
    kind: Literal["rejected"] = "rejected"


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The timer of `StartDeadline` has fired."""

    key: RoundKey
    kind: Literal["deadline_passed"] = "deadline_passed"


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Answer to `Aggregate`: the sum is taken, and what came of it is durable under `digest`.

    Attributes:
        key: the round.
        total_weight: sum of the integer weights.
        updates: contributions summed.
        digest: hex digest of the candidate model, or of an evaluation's record.
    """

    key: RoundKey
    total_weight: int
    updates: int
    digest: str
    kind: Literal["aggregated"] = "aggregated"


@dataclass(frozen=True, slots=True)
class Charged:
    """Answer to `ChargeAndStore`: in one transaction, the privacy charge and the stored candidate became durable."""

    key: RoundKey
    kind: Literal["charged"] = "charged"


@dataclass(frozen=True, slots=True)
class Published:
    """Answer to `Publish`: the model, or the evaluation, is visible."""

    key: RoundKey
    kind: Literal["published"] = "published"


@dataclass(frozen=True, slots=True)
class RetryDue:
    """The timer of `StartRetry` has fired; `key` is the abandoned attempt's."""

    key: RoundKey
    kind: Literal["retry_due"] = "retry_due"


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """The operator wants no further round to begin."""

    kind: Literal["pause_requested"] = "pause_requested"


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """The operator wants rounds to go on."""

    kind: Literal["resume_requested"] = "resume_requested"


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The operator ends the run."""

    reason: str
    kind: Literal["cancel_requested"] = "cancel_requested"


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """An effect cannot be done, now or ever (disk lost, model unreadable): the run fails."""

    key: RoundKey
    effect: str
    reason: str
    kind: Literal["effect_failed"] = "effect_failed"


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """The round would cost more privacy than is left: before its draw, or when its sum was to be charged."""

    key: RoundKey
    reason: str
    kind: Literal["budget_spent"] = "budget_spent"


@dataclass(frozen=True, slots=True)
class SumLost:
    """A sum that waits for its charge cannot be made again: its updates are gone, as after a restoration."""

    key: RoundKey
    reason: str
    kind: Literal["sum_lost"] = "sum_lost"


Event = (
    Started
    | CohortDrawn
    | RoundPrepared
    | Accepted
    | Declined
    | MemberFailed
    | WentSilent
    | Reported
    | Rejected
    | DeadlinePassed
    | Aggregated
    | Charged
    | Published
    | RetryDue
    | PauseRequested
    | ResumeRequested
    | CancelRequested
    | EffectFailed
    | BudgetSpent
    | SumLost
)
