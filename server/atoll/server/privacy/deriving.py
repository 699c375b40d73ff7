"""Derives a job's contract: its sensitivity, amplification and accountant, and the noise that meets its target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atoll.accounting import Accountant
from atoll.server.errors import InvalidRequestError
from atoll.server.jobs.refusals import count_noise, counts_on_sampling
from atoll.server.privacy.accounting import calibrate
from atoll.server.privacy.contract import AdaptiveClipping, Contract, squared_sensitivity
from atoll.server.privacy.events import Adjacency, Event, Sampling
from atoll.server.privacy.mechanisms.optimising import best_strategy
from atoll.server.privacy.mechanisms.strategy import Strategy

if TYPE_CHECKING:
    from atoll.server.jobs.privacy_section import Privacy
    from atoll.server.jobs.spec import JobSpec


def contract_of(spec: JobSpec) -> Contract | None:
    """The contract of a valid job; None for a job without a privacy section.

    For a job with a target it calibrates the noise.

    Raises:
        InvalidRequestError: if no noise meets the target, or if the count of adaptive clipping alone costs more.
    """
    section = spec.privacy
    if section is None:
        return None
    sampling = Sampling.POISSON if counts_on_sampling(spec) else Sampling.NONE
    accountant: Accountant = section.accountant or "prv"
    rate = _rate(spec, sampling)
    strategy = _strategy(spec, section)
    total = section.noise_multiplier or _least_noise(spec, section, sampling, rate, accountant, strategy)
    weight = 1 if spec.aggregation.weighting == "uniform" else spec.aggregation.max_weight
    adaptive = _adaptive(spec, section)
    return Contract(
        population=section.population,
        mechanism=section.mechanism,
        adjacency=Adjacency.ADD_REMOVE_ROW if section.unit == "row" else Adjacency.ADD_REMOVE,
        accountant=accountant,
        sampling=sampling,
        sample_rate=rate,
        epsilon=section.epsilon,
        delta=section.delta,
        noise_multiplier=_noise_on_updates(total, section, adaptive),
        clip=section.first_clip,
        adaptive=adaptive,
        weight_bound=weight,
        divisor_weight=spec.cohort.size * weight,
        rounds=spec.job.rounds,
        max_participations=section.max_participations,
        min_separation=section.min_separation or 1,
        bands=_bands(section),
        strategy=strategy,
        report_noise=section.report_noise,
    )


def _noise_on_updates(total: float, section: Privacy, adaptive: AdaptiveClipping | None) -> float:
    """The noise multiplier on the updates such that a release with its noised counts costs as much as ``total``."""
    if adaptive is not None:
        total = noise_beside_count(total, adaptive.count_noise)
    if section.report_noise is None:
        return total
    if section.report_noise <= total:
        raise InvalidRequestError(
            "privacy.count_noise",
            f"noise of {section.report_noise:g} participants on the number of reports: that number alone would cost "
            f"more than noise multiplier {total:.4g} allows for all",
            f"set privacy.report_noise above {total:.4g}; {10 * total:.3g} costs half a hundredth of the noise",
        )
    return float((total**-2 - section.report_noise**-2) ** -0.5)


def noise_beside_count(total: float, noise_on_count: float) -> float:
    """z_delta of Andrew et al. 2021, section 3.1: the multiplier on the updates for a total cost as ``total``.

    Raises:
        InvalidRequestError: if the count alone costs more.
    """
    left = total**-2 - (2 * noise_on_count) ** -2
    if left <= 0:
        raise InvalidRequestError(
            "privacy.count_noise",
            f"noise of {noise_on_count:g} participants on the count of adaptive clipping: the count alone would cost "
            f"more than noise multiplier {total:.4g} allows for all",
            f"set privacy.adaptive.count_noise above {total / 2:.4g}, or a larger cohort.size",
        )
    return float(left**-0.5)


def _rate(spec: JobSpec, sampling: Sampling) -> float:
    """Upper bound on the probability that one participant is drawn."""
    return spec.cohort.rate or 1.0 if sampling is Sampling.POISSON else 1.0


def _least_noise(
    spec: JobSpec,
    section: Privacy,
    sampling: Sampling,
    rate: float,
    accountant: Accountant,
    strategy: Strategy | None,
) -> float:
    """The least noise that meets the target over all rounds."""
    target, rounds = section.epsilon or math.inf, spec.job.rounds
    if sampling is not Sampling.NONE:
        return calibrate(Event(1.0, rate, rounds, sampling), target, section.delta, accountant)
    most = section.max_participations or rounds
    separation = section.min_separation or 1
    squares = squared_sensitivity(section.mechanism, _bands(section), rounds, separation, most, strategy)
    return calibrate(Event(1.0), target, section.delta, accountant) * math.sqrt(float(squares[-1]))


def _bands(section: Privacy) -> int:
    return section.bands_used if section.mechanism == "banded" else 1


def _strategy(spec: JobSpec, section: Privacy) -> Strategy | None:
    if section.mechanism != "blt":
        return None
    rounds = spec.job.rounds
    return best_strategy(rounds, section.min_separation or 1, section.max_participations or rounds, section.buffers)


def _adaptive(spec: JobSpec, section: Privacy) -> AdaptiveClipping | None:
    found, noise = section.adaptive, count_noise(spec, section)
    if found is None or noise is None:
        return None
    return AdaptiveClipping(found.initial, found.quantile, found.learning_rate, noise)
