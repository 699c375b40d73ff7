"""The rules of a run: rounds, stragglers, late reports, weights. Validated whole, then frozen."""

import math
from dataclasses import dataclass
from enum import StrEnum

from atoll.server.rounds.errors import PolicyError
from atoll.server.rounds.judging import Criterion, StopRule


class LateMode(StrEnum):
    """The fate of a report that arrives after its round has closed."""

    DROP = "drop"
    CARRY = "carry"


class Patience(StrEnum):
    """How long an open round waits once its quorum is met.

    GOAL: until `cohort_size` contributions have arrived.
    ALL: until no member is outstanding. Poisson sampling needs it: cutting the sample at a fixed count would break the
        independence that privacy amplification requires.
    DEADLINE: until the deadline, so that the duration of a round does not depend on who was drawn.
    """

    GOAL = "goal"
    ALL = "all"
    DEADLINE = "deadline"


class Weighting(StrEnum):
    """The weight of an update: its number of examples, or one."""

    EXAMPLES = "examples"
    UNIFORM = "uniform"


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise PolicyError(f"{name} = {value!r}: must be {allowed}")


@dataclass(frozen=True, slots=True)
class LatePolicy:
    """Late reports: dropped, or carried into a later round with a staleness weight.

    A carried update counts with its weight times `(1 + staleness) ** -exponent`, where staleness is the number of
    models released since the one that it was trained on: the polynomial discount of FedAsync (Xie et al. 2019,
    section 5.2), which FedBuff (Nguyen et al. 2022) uses with exponent 0.5. Beyond `max_staleness` it is dropped.
    """

    mode: LateMode = LateMode.DROP
    max_staleness: int = 1
    exponent: float = 0.5

    def __post_init__(self) -> None:
        _require(self.max_staleness >= 0, "late.max_staleness", self.max_staleness, "0 or more models")
        _require(
            math.isfinite(self.exponent) and self.exponent >= 0, "late.exponent", self.exponent, "finite and 0 or more"
        )


@dataclass(frozen=True, slots=True)
class StragglerPolicy:
    """How many participants are invited, how many reports are enough, and how many attempts a round gets.

    Attributes:
        cohort_size: goal of a round in contributions (fresh reports and carried updates); under Patience.GOAL the
            round closes when it is reached.
        over_selection: factor of participants invited over those needed (Bonawitz et al. 2019, section 2.2), 1 or more.
        patience: how long a round waits.
        quorum: fewest contributions that a round may close with. 0 only without Patience.GOAL: an empty Poisson sample
            has a valid sum.
        refused_count: whether a refused report counts towards quorum and goal, with a contribution of zero, so that
            the content of one update never decides whether others count.
        late: what happens to late reports.
        max_attempts: attempts at a round before the run fails, 1 or more.
        retry_delay_s: seconds between an abandoned attempt and the next one.
    """

    cohort_size: int
    over_selection: float = 1.0
    patience: Patience = Patience.GOAL
    quorum: int = 1
    refused_count: bool = False
    late: LatePolicy = LatePolicy()
    max_attempts: int = 3
    retry_delay_s: float = 5.0

    def __post_init__(self) -> None:
        _require(self.cohort_size >= 1, "cohort_size", self.cohort_size, "1 or more")
        sane = math.isfinite(self.over_selection) and 1 <= self.over_selection <= 100
        _require(sane, "over_selection", self.over_selection, "from 1 to 100")
        least = 1 if self.patience is Patience.GOAL else 0
        allowed = f"from {least} to the cohort size, {self.cohort_size}"
        _require(least <= self.quorum <= self.cohort_size, "quorum", self.quorum, allowed)
        _require(self.max_attempts >= 1, "max_attempts", self.max_attempts, "1 or more")
        patient = math.isfinite(self.retry_delay_s) and self.retry_delay_s >= 0
        _require(patient, "retry_delay_s", self.retry_delay_s, "finite and 0 or more seconds")

    def invited(self, carried: int = 0) -> int:
        """Participants to invite when `carried` updates already count towards the goal."""
        return math.ceil(max(0, self.cohort_size - carried) * self.over_selection)


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """All settings of a run that the engine knows.

    Attributes:
        rounds: train rounds to release. 0 only with `final_evaluation`: the run evaluates the given model and ends.
        straggler: cohort, quorum, late reports and retries.
        evaluate_every: released train rounds between two evaluate rounds; 0 for no evaluate rounds.
        final_evaluation: evaluate the last model in a round of its own, unless `evaluate_every` has just done so.
        weighting: what an update counts for.
        max_weight: cap on an update's example count; a larger count is treated as this one.
        max_abs: largest admissible magnitude of an update's value (a power of two), for the aggregation grid.
        best: the criterion that picks the best released model; None to pick none.
        stop: the early-stopping rule; None to play all rounds.
    """

    rounds: int
    straggler: StragglerPolicy
    evaluate_every: int = 0
    final_evaluation: bool = False
    weighting: Weighting = Weighting.EXAMPLES
    max_weight: int = 1_000_000
    max_abs: float = 32.0
    best: Criterion | None = None
    stop: StopRule | None = None

    def __post_init__(self) -> None:
        least = 0 if self.final_evaluation else 1
        _require(self.rounds >= least, "rounds", self.rounds, f"{least} or more")
        _require(self.evaluate_every >= 0, "evaluate_every", self.evaluate_every, "0 (never) or more rounds")
        _require(1 <= self.max_weight < 1 << 40, "max_weight", self.max_weight, "from 1 to 2**40 - 1 examples")
        positive = math.isfinite(self.max_abs) and self.max_abs > 0
        _require(
            positive and math.frexp(self.max_abs)[0] == 0.5, "max_abs", self.max_abs, "a power of two, 32.0 for one"
        )

    @property
    def secret_draw(self) -> bool:
        """Whether the draw is secret: nothing that participants or other runs see may depend on it."""
        return self.straggler.patience is Patience.DEADLINE

    @property
    def deciding_metrics(self) -> frozenset[str]:
        """Names of the metrics that judge models."""
        criteria = (self.best, self.stop.criterion if self.stop is not None else None)
        return frozenset(one.metric for one in criteria if one is not None)

    def counted_weight(self, weight: int) -> int:
        """Units that a report of `weight` examples counts for, before any staleness."""
        return 1 if self.weighting is Weighting.UNIFORM else min(weight, self.max_weight)
