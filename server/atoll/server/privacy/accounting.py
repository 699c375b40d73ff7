"""The joint cost of releases: epsilon at a delta, and the least noise that meets a target.

The accountants, and the events that each is valid for, are in ``atoll.accounting``.

Noise is accounted as continuous. The drawn noise is discrete; its standard deviation is increased enough to compensate
(``noise.sigma_for``), by at most a relative 1e-10, since it is at least 2**16 grid units.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from atoll import accounting
from atoll.accounting import ACCOUNTANTS, Accountant, Steps, TargetUnreachableError, least_noise
from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.events import Event, Sampling


def epsilon(events: Iterable[Event], delta: float, accountant: Accountant) -> float:
    """Upper bound on epsilon, at ``delta``, of all releases together; infinite if one release has no noise.

    Takes from a millisecond to a second; recent answers are cached.

    Raises:
        ValueError: for an unknown accountant, or a delta outside (0, 1).
    """
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant = {accountant!r}: must be one of {', '.join(ACCOUNTANTS)}")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be above 0 and below 1")
    return accounting.epsilon(_steps(merged(events)), delta, accountant)


def answered_by(events: Iterable[Event], delta: float, accountant: Accountant) -> Accountant:
    """The accountant whose answer ``epsilon`` returns: ``rdp`` where ``prv`` has no answer.

    Raises what ``epsilon`` raises.
    """
    return accounting.answered_by(_steps(merged(events)), delta, accountant)


def filtered(events: Iterable[Event], delta: float) -> tuple[float, Accountant]:
    """Epsilon of adaptively chosen events by a privacy filter, and its accountant (``atoll.accounting.filtering``)."""
    return accounting.filtered(_steps(merged(events)), delta)


def _steps(paid: Iterable[Event]) -> list[Steps]:
    return [Steps(event.noise_multiplier, event.sample_rate, event.count) for event in paid]


def merged(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merge events into the fewest of equal cost: equal events are counted, those without sampling become one.

    n Gaussian releases with noise multipliers z_i cost exactly as much as one with (sum of z_i**-2)**(-1/2).
    """
    counts: Counter[Event] = Counter()
    precision = 0.0
    for event in events:
        if event.is_free:
            continue
        if event.sample_rate == 1:
            precision += math.inf if event.noise_multiplier == 0 else event.count / event.noise_multiplier**2
        else:
            counts[_single(event)] += event.count
    found = [Event(one.noise_multiplier, one.sample_rate, count, one.sampling) for one, count in counts.items()]
    if precision:
        found.append(Event(precision**-0.5))
    return tuple(sorted(found, key=lambda one: (one.sampling, one.sample_rate, one.noise_multiplier)))


def _single(event: Event) -> Event:
    return Event(event.noise_multiplier, event.sample_rate, 1, event.sampling)


def calibrate(event: Event, target: float, delta: float, accountant: Accountant) -> float:
    """The least noise multiplier with which ``event`` costs at most ``target``; the event's own multiplier is ignored.

    Evaluates about ten accounts; recent answers are cached. The answer is too large by at most a relative 1e-4.

    Raises:
        InvalidRequestError: if no multiplier up to a million meets the target, or if the target is not a finite number
            above 0.
    """
    if not 0 < target < math.inf:
        raise InvalidRequestError(
            "privacy.target", f"epsilon {target} is no target", "choose a finite number above 0 for it"
        )
    return _calibrate(event.sample_rate, event.count, event.sampling, target, delta, accountant)


@lru_cache(maxsize=256)
def _calibrate(  # the arguments are the cache key
    rate: float, count: int, sampling: Sampling, target: float, delta: float, accountant: Accountant
) -> float:
    def cost(noise: float) -> float:
        return epsilon((Event(noise, rate, count, sampling),), delta, accountant)

    try:
        return least_noise(cost, target)
    except TargetUnreachableError as error:
        raise InvalidRequestError(
            "privacy.target",
            f"epsilon {target:g} at delta {delta:g} is below what can be accounted for",
            "choose a larger epsilon or delta",
        ) from error
