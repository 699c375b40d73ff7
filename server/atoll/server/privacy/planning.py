"""The plan of a private job: epsilon by round, signal-to-noise ratio, and cohorts and rounds that meet a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs.refusals import has_secret_draw
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.deriving import contract_of
from atoll.server.privacy.events import Sampling
from atoll.server.privacy.in_turns import InTurns, taking_turns
from atoll.server.privacy.signal_to_noise import noise_of_round, signal_to_noise, signal_to_noise_of_run

if TYPE_CHECKING:
    from atoll.server.jobs.spec import JobSpec

SHOWN_ROUNDS = 10
COHORT_FACTORS = (0.5, 1, 2, 4, 10)
ROUND_FACTORS = (0.25, 0.5, 1, 2, 4)
MAX_COHORT = 100_000
FEW_PARTICIPANTS = 100
"""Up to this many participants, noise that hides one of them is almost as large as the sum of all."""
MAX_LONGER = 100
"""Largest number of rounds to try, as a multiple of the planned rounds."""
Progress = Callable[[int, int, str], None]
"""Called with the number of steps done, the total number of steps, and what the next step computes."""


@dataclass(frozen=True, slots=True)
class SpentAfter:
    """Epsilon after ``rounds`` rounds."""

    rounds: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """A cohort and a number of rounds, with the least noise that meets the target there.

    Attributes:
        cohort: reports expected in a round.
        rounds: train rounds.
        sample_rate: probability that one participant of the same population is in a round; 1 without amplification.
        population_least: minimum number of participants that it needs; None if no noise meets the target.
        noise_multiplier: the least that meets the target; None if none does.
        signal_to_noise: best case of one round; None if no noise meets the target.
        signal_to_noise_run: of all rounds together, at best.
    """

    cohort: int
    rounds: int
    sample_rate: float
    population_least: int | None
    noise_multiplier: float | None
    signal_to_noise: float | None
    signal_to_noise_run: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A job's promise, and its effect on the model's quality.

    Attributes:
        contract: the job's contract.
        elements: d, the number of elements that one round updates.
        cohort: reports expected in a round, by which every sum is divided.
        population_least: minimum number of participants that the plan needs.
        least_s: minimum seconds that the rounds take, since a round with a secret draw lasts until its deadline; None
            without secret draws.
        spent: epsilon by round.
        noise_element: standard deviation of the noise on one element of a round's mean.
        signal_element: maximum root mean square of an element of the mean.
        noise_norm: expected L2 norm of the noise on the mean.
        signal_norm: maximum L2 norm of the mean, which is the clip norm.
        signal_to_noise: of one round, at best.
        signal_to_noise_run: of all rounds together, at best.
        target: epsilon that the rest of the plan is for: the requested one, the job's own, or the epsilon that the job
            results in.
        rounds_within: rounds with the job's noise until the target is spent; None if all planned rounds fit and
            participation is capped, or if even a hundred times as many fit.
        cohorts: cohorts of the same population, with the noise that they need for the target.
        durations: numbers of rounds, with the noise that they need for the target.
        wanted: signal-to-noise ratio of one round that the smallest cohort must reach.
        cohort_wanted: that cohort, to within 5%; None if no cohort of this population reaches the ratio.
        in_turns: settings with which participants take turns and spend no more for the same noise; None if there are
            none or the number of participants is unknown.
        sample_level: whether the participants are so few that DP-SGD on their own rows, which hides rows instead of
            participants, serves them better.
    """

    contract: Contract
    elements: int
    cohort: int
    population_least: int
    least_s: float | None
    spent: tuple[SpentAfter, ...]
    noise_element: float
    signal_element: float
    noise_norm: float
    signal_norm: float
    signal_to_noise: float
    signal_to_noise_run: float
    target: float
    rounds_within: int | None
    cohorts: tuple[Alternative, ...]
    durations: tuple[Alternative, ...]
    wanted: float
    cohort_wanted: Alternative | None
    in_turns: InTurns | None
    sample_level: bool


def plan_of(
    spec: JobSpec,
    elements: int,
    target: float | None = None,
    wanted: float = 1.0,
    progress: Progress = lambda *_: None,
    *,
    participants: int | None = None,
) -> Plan:
    """Plan a private job; takes up to a minute with many rounds.

    Args:
        spec: a valid job.
        elements: d, of the part of the model that one round updates.
        target: epsilon to meet; None for the job's own, or the epsilon that the job results in.
        wanted: signal-to-noise of one round that the smallest cohort must reach.
        progress: called before each step.
        participants: size of the population; None for the job's own figure.

    Raises:
        InvalidRequestError: if the job has no privacy section, or no noise meets its target.
    """
    size, rounds = spec.cohort.size, spec.job.rounds
    cohorts = [found for found in _scaled(size, COHORT_FACTORS) if found <= _most(spec)]
    durations = _scaled(rounds, ROUND_FACTORS)
    steps = _Steps(progress, 4 + len(cohorts) + len(durations))
    steps.next("the job's noise")
    contract = contract_of(spec)
    if contract is None:
        raise InvalidRequestError(
            "privacy.absent",
            "the job has no [privacy] section, so it promises nothing",
            "add one: docs/job-reference.md has its keys",
        )
    steps.next("epsilon by round")
    spent = tuple(SpentAfter(done, contract.epsilon_after(done)) for done in _shown(contract.rounds))
    aim = target or contract.epsilon or spent[-1].epsilon
    search = _Search(spec, elements, aim)
    steps.next(f"how many rounds epsilon {aim:.4g} lasts")
    rounds_within = _rounds_within(contract, aim)
    of_cohorts = [search.at(found, rounds) for found in steps.each(cohorts, "the noise of a cohort of {}")]
    of_durations = [search.at(size, found) for found in steps.each(durations, "the noise of {} rounds")]
    steps.next(f"the smallest cohort with signal to noise {wanted:g}")
    cohort_wanted = search.least_cohort(wanted)
    noise = noise_of_round(contract) * contract.clip / size
    ratio, least = signal_to_noise(contract, size, elements), _population_least(spec, contract)
    return Plan(
        contract=contract,
        elements=elements,
        cohort=size,
        population_least=least,
        least_s=contract.rounds * spec.straggler.report_window_s if has_secret_draw(spec) else None,
        spent=spent,
        noise_element=noise,
        signal_element=contract.clip / math.sqrt(elements),
        noise_norm=noise * math.sqrt(elements),
        signal_norm=contract.clip,
        signal_to_noise=ratio,
        signal_to_noise_run=signal_to_noise_of_run(contract, size, elements),
        target=aim,
        rounds_within=rounds_within,
        cohorts=tuple(of_cohorts),
        durations=tuple(of_durations),
        wanted=wanted,
        cohort_wanted=cohort_wanted,
        in_turns=taking_turns(spec, contract, participants),
        sample_level=least <= FEW_PARTICIPANTS and ratio < 1,
    )


@dataclass(slots=True)
class _Steps:
    """Reports the progress of ``total`` steps, each before it begins."""

    progress: Progress
    total: int
    done: int = 0

    def next(self, label: str) -> None:
        self.progress(self.done, self.total, label)
        self.done += 1

    def each(self, numbers: Iterable[int], label: str) -> Iterator[int]:
        for number in numbers:
            self.next(label.format(number))
            yield number


def _scaled(number: int, factors: Iterable[float]) -> list[int]:
    """The number times each factor, at least 1, without duplicates."""
    return sorted({max(1, round(number * factor)) for factor in factors})


def _most(spec: JobSpec) -> int:
    """The largest cohort that the population allows."""
    cohort = spec.cohort
    return round(cohort.size / cohort.rate) if cohort.rate else MAX_COHORT


def _shown(rounds: int) -> list[int]:
    """Rounds to show, evenly spread, with the first and the last."""
    return sorted({1, *(max(1, round(rounds * step / SHOWN_ROUNDS)) for step in range(1, SHOWN_ROUNDS + 1))})


def _population_least(spec: JobSpec, contract: Contract) -> int:
    """The population size that the rate implies or, with capped participation, the number that fills all rounds."""
    size = spec.cohort.size
    if contract.sampling is not Sampling.NONE:
        return round(size / contract.sample_rate)
    return size * max(contract.min_separation, -(-contract.rounds // contract.participations))


def _rounds_within(contract: Contract, target: float) -> int | None:
    def fits(rounds: int) -> bool:
        return replace(contract, rounds=rounds).epsilon_after(rounds) <= target * (1 + 1e-9)

    most = contract.rounds * MAX_LONGER
    if target == contract.epsilon and contract.sampling is not Sampling.NONE:
        return contract.rounds
    rounds = contract.rounds
    while fits(rounds):
        if rounds == most or contract.sampling is Sampling.NONE:
            return None
        rounds = min(rounds * 2, most)
    return _first(lambda found: not fits(found), 1, rounds) - 1


def _first(holds: Callable[[int], bool], low: int, high: int, tolerance: float = 1.0) -> int:
    """The smallest number from ``low`` to ``high`` that ``holds``, or one close above; ``high`` must hold."""
    while low < high and high > low * tolerance:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


@dataclass(frozen=True, slots=True)
class _Search:
    """Searches alternatives to a job, with other cohorts and numbers of rounds, for one target."""

    spec: JobSpec
    elements: int
    target: float

    def least_cohort(self, wanted: float) -> Alternative | None:
        """The smallest cohort with that signal-to-noise ratio, or one slightly larger."""
        rounds, most = self.spec.job.rounds, _most(self.spec)

        def enough(size: int) -> bool:
            return (self.at(size, rounds).signal_to_noise or 0.0) >= wanted

        size = min(self.spec.cohort.size, most)
        while not enough(size):
            if size == most:
                return None
            size = min(size * 4, most)
        return self.at(_first(enough, 1, size, 1.05), rounds)

    def at(self, size: int, rounds: int) -> Alternative:
        """The job with a cohort of ``size`` for ``rounds`` rounds."""
        cohort, section = self.spec.cohort, self.spec.privacy
        changed = {"size": size}
        rate = None if cohort.rate is None else min(1.0, cohort.rate * size / cohort.size)
        spec = self.spec.model_copy(
            update={
                "cohort": cohort.model_copy(update={**changed, "rate": rate}),
                "job": self.spec.job.model_copy(update={"rounds": rounds}),
                "privacy": section and section.model_copy(update={"epsilon": self.target, "noise_multiplier": None}),
            }
        )
        try:
            contract = contract_of(spec)
        except InvalidRequestError:
            contract = None
        if contract is None:
            return Alternative(size, rounds, rate or 1.0, None, None, None, None)
        return Alternative(
            size,
            rounds,
            contract.sample_rate,
            _population_least(spec, contract),
            contract.noise_multiplier,
            signal_to_noise(contract, size, self.elements),
            signal_to_noise_of_run(contract, size, self.elements),
        )
