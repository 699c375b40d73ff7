"""The alternative of participants that take turns: what the job's noise would cost without its secret draw.

Without a secret draw a run costs as much as the rounds of one participant. ``least_recent`` draws the participants
whose last round is longest ago, so each of N participants is in about rounds * size / N of the rounds. A cap at that
number loses no round, and no round waits for participants other than its members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.deriving import contract_of
from atoll.server.privacy.events import Sampling
from atoll.server.privacy.signal_to_noise import noise_of_run

if TYPE_CHECKING:
    from atoll.server.jobs.privacy_section import Mechanism
    from atoll.server.jobs.spec import JobSpec

SAMPLER = "least_recent"


@dataclass(frozen=True, slots=True)
class InTurns:
    """Settings with which participants take turns; the run's noise is as large as the job's.

    Attributes:
        sampler: ``cohort.sampler``.
        participants: number that must be available in every round; with fewer, the run would wait.
        max_participations, min_separation, mechanism, noise_multiplier: keys of ``[privacy]``.
        epsilon: of the run.
    """

    sampler: str
    participants: int
    max_participations: int
    min_separation: int
    mechanism: Mechanism
    noise_multiplier: float
    epsilon: float


def taking_turns(spec: JobSpec, contract: Contract, participants: int | None = None) -> InTurns | None:
    """The settings that spend the least, if that is no more than the job spends.

    Args:
        spec: a private job.
        contract: the job's.
        participants: size of the population; None for size / rate, or ``cohort.min_available``.

    Returns:
        None if the job spends less, already has these settings, or leaves the number of participants open.
    """
    size, rounds = spec.cohort.size, spec.job.rounds
    population = participants or round(size / spec.cohort.rate if spec.cohort.rate else spec.cohort.min_available)
    if population < size or (contract.sampling is Sampling.NONE and population == size):
        return None
    most, separation = -(-rounds * size // population), population // size
    found = min(_tried(spec, contract, population, most, separation), key=lambda one: one.epsilon, default=None)
    spent = contract.epsilon_after(rounds)
    waits = contract.sampling is not Sampling.NONE
    return found if found is not None and (found.epsilon < spent or (waits and found.epsilon == spent)) else None


def _tried(spec: JobSpec, contract: Contract, population: int, most: int, separation: int) -> Iterator[InTurns]:
    for mechanism in _mechanisms(spec):
        try:
            found = _contract_in_turns(spec, mechanism, most, separation)
        except InvalidRequestError:
            continue
        if found is None:
            continue
        noise = noise_of_run(contract) / noise_of_run(found)
        epsilon = replace(found, noise_multiplier=noise).epsilon_after(found.rounds)
        yield InTurns(SAMPLER, population, most, separation, mechanism, noise, epsilon)


def _mechanisms(spec: JobSpec) -> tuple[Mechanism, ...]:
    """Possible mechanisms: noise that cancels over rounds needs one clip norm, and the whole model in each."""
    section = spec.privacy
    correlated = section is not None and section.adaptive is None and spec.aggregation.fragments == 1
    return ("gaussian", "blt") if correlated else ("gaussian",)


def _contract_in_turns(spec: JobSpec, mechanism: Mechanism, most: int, separation: int) -> Contract | None:
    """The contract with noise 1 on the updates."""
    section = spec.privacy
    turned = {
        "mechanism": mechanism,
        "max_participations": most,
        "min_separation": separation,
        "bands": None,
        "report_noise": None,
        "epsilon": None,
        "noise_multiplier": 1.0,
        "adaptive": None,
        "clip": 1.0 if section is None else section.first_clip,
    }
    spec = spec.model_copy(
        update={
            "cohort": spec.cohort.model_copy(update={"sampler": SAMPLER, "rate": None}),
            "privacy": section and section.model_copy(update=turned),
        }
    )
    return contract_of(spec)
