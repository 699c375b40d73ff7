"""The state of a run and of its live round, as frozen values.

All fields are str, int, float, bool, None, enums, tuples or other values of this package, so that any JSON mapper can
write and read them back (the tests do it with a pydantic `TypeAdapter`).
"""

from dataclasses import dataclass, field
from enum import StrEnum

from atoll.server.rounds.judging import Standing
from atoll.server.rounds.policy import RunPolicy
from atoll.server.rounds.roster import Roster
from atoll.server.rounds.updates import Metrics, RoundKey, UpdateRef


class RoundKind(StrEnum):
    """A train round makes a new model from updates; an evaluate round measures the current one and has only metrics."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class Phase(StrEnum):
    """The progress of a round."""

    CREATED = "created"
    SAMPLED = "sampled"
    OPEN = "open"
    CLOSING = "closing"
    AGGREGATED = "aggregated"
    CHARGED = "charged"
    RELEASED = "released"
    ABANDONED = "abandoned"


class RunStatus(StrEnum):
    """The status of a run. In the last three the run has ended; only an extension continues it."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the run is over. Only an extension can change it then."""
        return self in (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class RoundGrid:
    """The integer grid of a round, fixed when it opens and recorded for replay.

    The fields are those of `atoll.server.aggregation.grid.Grid`, which the engine does not import: its arithmetic is on
    weights, never on values.

    Attributes:
        fraction_bits: bits after the binary point of an update's value.
        max_abs: largest admissible magnitude of a value, a power of two.
        weight_shift: an update of n units has the integer weight `n << weight_shift`.
        weight_total_bits: maximum number of bits of the sum of the cohort's integer weights.
        clip: L2 norm that updates are clipped to; 0 for none.
    """

    fraction_bits: int
    max_abs: float
    weight_shift: int
    weight_total_bits: int
    clip: float = 0.0


@dataclass(frozen=True, slots=True)
class Carried:
    """An acknowledged update that its own round could not take.

    Attributes:
        update: the update, under the key of the round that it was made for.
        version: the model that it was trained on, counted in released train rounds.
        staleness: models released between `version` and the round that takes the update; 0 while it waits.
        factor: `(1 + staleness) ** -exponent` in that round; 1 while it waits.
    """

    update: UpdateRef
    version: int
    staleness: int = 0
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Contribution:
    """One term of a round's sum: an update with its integer weight, or metrics with an example count (evaluate)."""

    participant: str
    weight: int
    update: UpdateRef | None
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class RoundState:
    """One attempt at one round.

    Attributes:
        key: round and attempt. Train and evaluate rounds share one numbering.
        kind: train or evaluate.
        version: the model handed out, as the number of train rounds released before.
        phase: its progress.
        created_at: epoch seconds at which the attempt began. Likewise `sampled_at`, `opened_at`, `closed_at` (its set
            is fixed), `aggregated_at`, `charged_at` and `ended_at`; each is 0 until then.
        roster: its members, each with a status and a reason.
        carried: late updates of earlier rounds that this round counts.
        eligible: number of participants that the sampler could choose from. The draw can be repeated from the same
            participants and histories with `sampler` and `seed`.
        grid: the integer grid, None until prepared and in evaluate rounds.
        window_s: seconds from opening to the deadline; `deadline_at` is its epoch time.
        total_weight: sum of the integer weights, set with `digest` when aggregated.
        digest: hex digest of the candidate model, or of an evaluation's record.
        reason: why it closed, or why it was abandoned.
    """

    key: RoundKey
    kind: RoundKind
    version: int
    phase: Phase
    created_at: float
    roster: Roster = field(default_factory=Roster)
    carried: tuple[Carried, ...] = ()
    eligible: int = 0
    sampler: str = ""
    seed: int = 0
    grid: RoundGrid | None = None
    window_s: float = 0.0
    deadline_at: float = 0.0
    sampled_at: float = 0.0
    opened_at: float = 0.0
    closed_at: float = 0.0
    aggregated_at: float = 0.0
    charged_at: float = 0.0
    ended_at: float = 0.0
    total_weight: int = 0
    digest: str = ""
    reason: str = ""

    @property
    def counted(self) -> int:
        """Contributions so far: fresh reports and carried updates."""
        return self.roster.reported + len(self.carried)


@dataclass(frozen=True, slots=True)
class PastRound:
    """An ended round, kept to decide on its late reports."""

    key: RoundKey
    kind: RoundKind
    version: int
    roster: Roster


@dataclass(frozen=True, slots=True)
class Tally:
    """Totals of a run, for display.

    Attributes:
        trained: train rounds released.
        evaluated: evaluate rounds released.
        abandoned: attempts abandoned.
        contributions: updates and evaluations that counted.
    """

    trained: int = 0
    evaluated: int = 0
    abandoned: int = 0
    contributions: int = 0


@dataclass(frozen=True, slots=True)
class RunState:
    """A run: its policy, its current model and its live round.

    Its size is bounded: it holds the rounds of the last `max_staleness` + 2 models, regardless of how many were played.

    Attributes:
        run_id: the run.
        policy: the run's rules.
        model: hex digest of the current model.
        version: train rounds released, which is the version of `model`.
        status: the run's status.
        round: the live attempt, or the last one when paused or ended; None before the start.
        carried: late updates that wait for a round.
        past: ended rounds whose late reports may still count, oldest first.
        pause_requested: the run pauses before the next draw.
        cancel_requested: the operator's reason, while a charged round is still being published.
        tally: totals for display.
        reason: why the run ended, or why it paused without an operator's request.
        best: the best model so far, by the policy's criterion; None before the first measurement.
        progress: the best model so far by the criterion of the policy's stop rule.
        stopping: why the run ends before all rounds are done; empty if it does not.
    """

    run_id: str
    policy: RunPolicy
    model: str
    version: int = 0
    status: RunStatus = RunStatus.SUBMITTED
    round: RoundState | None = None
    carried: tuple[Carried, ...] = ()
    past: tuple[PastRound, ...] = ()
    pause_requested: bool = False
    cancel_requested: str | None = None
    tally: Tally = Tally()
    reason: str = ""
    best: Standing | None = None
    progress: Standing | None = None
    stopping: str = ""
