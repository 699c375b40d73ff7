"""Events: what can happen to a run. Each is a fact, and is persisted before the shell acts on it.

A server of the previous release must be able to continue a run, and must not misread it. It refuses a run with an event
or a field that it does not know. Nothing here changes its meaning: no field or kind is renamed, and no default changes.
A new field has a default that stands for the old behaviour, and it is not written at that value. An event that the
previous release cannot read is written only after an operator has used the new feature. The same rules hold for
``run_state``. ``tests/server/rounds/test_persisted.py`` pins the fields.

`kind` is the tag by which a JSON mapper distinguishes them: in pydantic's words,
`Annotated[Event, Field(discriminator="kind")]`.
"""

import math
from dataclasses import dataclass
from typing import Literal

from atoll.server.rounds.run_state import RoundGrid
from atoll.server.rounds.updates import Metrics, RoundKey, Scores, UpdateRef, check_metrics


@dataclass(frozen=True, slots=True)
class Started:
    """The run was submitted and its initial model is durable."""

    kind: Literal["started"] = "started"


@dataclass(frozen=True, slots=True)
class CohortDrawn:
    """Answer to `DrawCohort`: the members as (participant, declared weight), and how they were drawn.

    `required` lists the members that must report, as (participant, name under which the job requires it).

    Raises:
        ValueError: a participant is drawn twice, declares a weight below 0, or is required and not drawn.
    """

    key: RoundKey
    members: tuple[tuple[str, int], ...]
    eligible: int
    sampler: str
    seed: int
    required: tuple[tuple[str, str], ...] = ()
    kind: Literal["cohort_drawn"] = "cohort_drawn"

    def __post_init__(self) -> None:
        drawn = {participant for participant, _ in self.members}
        if len(drawn) != len(self.members):
            raise ValueError(
                f"round {self.key}: the cohort names a participant twice; a sampler draws each at most once"
            )
        for participant, weight in self.members:
            if weight < 0:
                raise ValueError(f"round {self.key}: {participant} declares weight {weight}; must be 0 or more")
        absent = [participant for participant, _ in self.required if participant not in drawn]
        if absent:
            raise ValueError(f"round {self.key}: {absent[0]} is required and was not drawn")


@dataclass(frozen=True, slots=True)
class RoundPrepared:
    """Answer to `PrepareRound`: window and deadline, and the grid for a train round with members or carried updates.

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
    """A member declines the task and gives its reason: its own policy, or other work."""

    key: RoundKey
    participant: str
    reason: str
    kind: Literal["declined"] = "declined"


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """A member reports that its training failed."""

    key: RoundKey
    participant: str
    reason: str
    kind: Literal["member_failed"] = "member_failed"


@dataclass(frozen=True, slots=True)
class WentSilent:
    """A member's connection has been lost for longer than the shell's grace period."""

    key: RoundKey
    participant: str
    reason: str
    kind: Literal["went_silent"] = "went_silent"


@dataclass(frozen=True, slots=True)
class Reported:
    """A member's report is durable: an update (train) or only metrics (evaluate).

    Raises:
        ValueError: the update is by another participant or for another round, the weight is negative, or a metric is
            not finite.
    """

    key: RoundKey
    participant: str
    update: UpdateRef | None
    weight: int
    metrics: Metrics = ()
    scores: tuple[Scores, ...] = ()
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
        unreported: the update was refused while it was being sent. Participants may send anything at any time, so such
            a rejection never removes an acknowledged report. Only damage that the server itself finds does.
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
    """Answer to `Aggregate`: the sum is taken, and the result is durable under `digest`.

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
    """Answer to `ChargeAndStore`: in one transaction, the privacy charge and the stored candidate became durable.

    Attributes:
        key: the round.
        metrics: the members' metrics that judge models (`RunPolicy.deciding_metrics`), as far as they were measured. If
            they make a model the best one, it is named before a newer model can replace it.

    Raises:
        ValueError: a metric is not finite.
    """

    key: RoundKey
    metrics: Metrics = ()
    kind: Literal["charged"] = "charged"

    def __post_init__(self) -> None:
        check_metrics(self.metrics)


@dataclass(frozen=True, slots=True)
class Published:
    """Answer to `Publish`: the model, or the evaluation, is visible.

    Attributes:
        key: the round.
        metrics: the server evaluator's metrics that judge models, as far as they were measured.

    Raises:
        ValueError: a metric is not finite.
    """

    key: RoundKey
    metrics: Metrics = ()
    kind: Literal["published"] = "published"

    def __post_init__(self) -> None:
        check_metrics(self.metrics)


@dataclass(frozen=True, slots=True)
class RetryDue:
    """The timer of `StartRetry` has fired; `key` is the abandoned attempt's."""

    key: RoundKey
    kind: Literal["retry_due"] = "retry_due"


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """The operator pauses the run: no further round begins."""

    kind: Literal["pause_requested"] = "pause_requested"


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """The operator resumes the run."""

    kind: Literal["resume_requested"] = "resume_requested"


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The operator cancels the run."""

    reason: str
    kind: Literal["cancel_requested"] = "cancel_requested"


@dataclass(frozen=True, slots=True)
class ExtendRequested:
    """The operator extends a run that has ended: it goes on for ``rounds`` train rounds from its newest model.

    Raises:
        ValueError: fewer than 1 round.
    """

    rounds: int
    kind: Literal["extend_requested"] = "extend_requested"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds = {self.rounds}: a run is extended by 1 round or more")


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """An effect has failed for good (disk lost, model unreadable): the run fails."""

    key: RoundKey
    effect: str
    reason: str
    kind: Literal["effect_failed"] = "effect_failed"


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """The round would cost more privacy than is left; found before its draw, or when its sum was to be charged."""

    key: RoundKey
    reason: str
    kind: Literal["budget_spent"] = "budget_spent"


@dataclass(frozen=True, slots=True)
class SumLost:
    """A sum that waits for its charge cannot be made again: updates are gone, for example after a restore.

    Attributes:
        key: of the round.
        reason: what is gone.
        lost: its updates that cannot be read.
    """

    key: RoundKey
    reason: str
    lost: tuple[UpdateRef, ...]
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
    | ExtendRequested
    | EffectFailed
    | BudgetSpent
    | SumLost
)
