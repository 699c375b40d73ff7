"""Plan DP-SGD on a participant's rows: noise for a target epsilon, and the resulting signal-to-noise ratio.

One row is the unit of privacy (Abadi et al. 2016). A step takes each row with probability q = batch / rows, clips each
row's gradient to norm C, and adds noise of standard deviation z C in each of d elements to their sum. The sum of
clipped gradients has a norm of at most about batch * C, the noise has norm z C sqrt(d), so a step's signal-to-noise
ratio is batch / (z sqrt(d)) at best. Noise of different steps and participants is independent, so over P participants,
S steps in a round and R rounds the ratio is sqrt(P S R) times a step's, if all gradients agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from atoll.accounting.calibrating import least_noise
from atoll.accounting.composing import epsilon as epsilon_of
from atoll.accounting.filtering import filtered
from atoll.accounting.renyi import ACCOUNTANTS, Accountant
from atoll.accounting.steps import Steps

MAX_STEPS = 10_000_000
"""Maximum number of steps of a plan."""
_DIGITS = 4
"""Significant digits of a planned noise multiplier, which people copy by hand; rounded up."""


@dataclass(frozen=True, slots=True)
class DpSgdTraining:
    """The training of participants in a run.

    Attributes:
        rows: rows of one participant; of the smallest if they differ, because its rows are drawn most often.
        batch: expected rows in a step.
        rounds: rounds in which each participant takes part.
        steps_per_round: local steps in each round.
        participants: participants whose updates a round averages, with equal weights.
        elements: d, trained elements of the model; None if unknown, and then there are no ratios.

    Raises:
        ValueError: for a number below 1, a batch above the rows, or more than ``MAX_STEPS`` steps.
    """

    rows: int
    batch: int
    rounds: int
    steps_per_round: int
    participants: int = 1
    elements: int | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "batch", "rounds", "steps_per_round", "participants", "elements"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value}; must be 1 or more")
        if self.batch > self.rows:
            raise ValueError(f"batch = {self.batch} is more than the {self.rows} rows; must be at most {self.rows}")
        if self.steps > MAX_STEPS:
            raise ValueError(f"{self.steps} steps in all rounds; at most {MAX_STEPS} can be planned")

    @classmethod
    def of_epochs(
        cls, rows: int, batch: int, rounds: int, epochs: int = 1, *, participants: int = 1, elements: int | None = None
    ) -> DpSgdTraining:
        """The training with the steps that ``OpacusParticipant`` takes in these epochs. Raises as the class."""
        per_epoch = -(-rows // batch) if batch > 0 else 1
        return cls(rows, batch, rounds, epochs * per_epoch, participants, elements)

    @property
    def steps(self) -> int:
        """Steps of one participant in all rounds."""
        return self.rounds * self.steps_per_round

    @property
    def sample_rate(self) -> float:
        """Probability that a row is in a step."""
        return self.batch / self.rows


@dataclass(frozen=True, slots=True)
class DpSgdPlan:
    """The privacy cost of the training for one row, and its best-case signal-to-noise ratios.

    Attributes:
        training: the planned training.
        delta: of the guarantee.
        noise_multiplier: standard deviation of the noise over the clip norm of one row's gradient.
        accountant: of the participant's ledger.
        epsilon: the participant's ledger after the last round.
        epsilon_fixed: the same steps with their number fixed beforehand; the ledger does not assume that and counts
            more.
        of_step: ratio of one step of one participant; None without ``training.elements``.
        of_update: of one participant's update in a round.
        of_round: of the mean of all participants' updates.
        of_run: of all rounds together.
    """

    training: DpSgdTraining
    delta: float
    noise_multiplier: float
    accountant: Accountant
    epsilon: float
    epsilon_fixed: float
    of_step: float | None
    of_update: float | None
    of_round: float | None
    of_run: float | None


def plan_dp_sgd(
    training: DpSgdTraining,
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    accountant: Accountant = "prv",
) -> DpSgdPlan:
    """Plan the least noise for a target, or compute the cost of given noise; takes up to some seconds.

    Args:
        training: rows, steps and rounds.
        delta: of the guarantee, well below 1 / rows.
        epsilon: target of all rounds together, by the participant's ledger.
        noise_multiplier: noise instead of a target.
        accountant: as in the participant's ``DpSgd``.

    Raises:
        ValueError: for a value out of range, or unless exactly one of ``epsilon`` and ``noise_multiplier`` is given.
        TargetUnreachableError: a ``ValueError``, if no noise meets the target.
    """
    _check_promise(training.rows, delta, accountant)

    def steps(noise: float) -> tuple[Steps, ...]:
        return (Steps(noise, training.sample_rate, training.steps),)

    noise = _noise(lambda noise: filtered(steps(noise), delta, accountant)[0], epsilon, noise_multiplier)
    of_step = _ratio(training, noise)
    made = training.steps_per_round
    averaged = made * training.participants
    return DpSgdPlan(
        training=training,
        delta=delta,
        noise_multiplier=noise,
        accountant=accountant,
        epsilon=filtered(steps(noise), delta, accountant)[0],
        epsilon_fixed=epsilon_of(steps(noise), delta, "prv"),
        of_step=of_step,
        of_update=of_step and of_step * math.sqrt(made),
        of_round=of_step and of_step * math.sqrt(averaged),
        of_run=of_step and of_step * math.sqrt(averaged * training.rounds),
    )


def _check_promise(rows: int, delta: float, accountant: str) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}; must be above 0 and below 1")
    if delta * rows >= 1:
        raise ValueError(
            f"delta = {delta:g} for {rows} rows: publishing a row at random would meet it; must be below {1 / rows:.3g}"
        )
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant = {accountant!r}; must be one of {', '.join(ACCOUNTANTS)}")


def _noise(counted: Callable[[float], float], target: float | None, given: float | None) -> float:
    if given is None and target is not None:
        return _rounded_up(least_noise(counted, target))
    if given is None or target is not None:
        raise ValueError("give exactly one of epsilon and noise_multiplier")
    if not 0 < given < math.inf:
        raise ValueError(f"noise_multiplier = {given}; must be a finite number above 0")
    return given


def _rounded_up(noise: float) -> float:
    """``noise`` rounded up to few significant digits."""
    places = _DIGITS - 1 - math.floor(math.log10(noise))
    return round(math.ceil(noise * 10.0**places - 1e-9) / 10.0**places, max(places, 0))


def _ratio(training: DpSgdTraining, noise: float) -> float | None:
    if training.elements is None:
        return None
    return training.batch / (noise * math.sqrt(training.elements))
