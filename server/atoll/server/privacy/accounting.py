"""What releases cost together: epsilon at a delta, and the least noise that meets a target.

Accountants, with what each is valid for, are ``atoll.accounting``'s.

Noise is accounted as continuous. The discrete Gaussian has the same Rényi divergences or smaller ones (Canonne, Kamath,
Steinke 2020, theorem 4), and at the standard deviations used, 2**16 grid units and more, its other divergences differ
by less than float64 can tell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from atoll import accounting
from atoll.accounting import ACCOUNTANTS, Accountant, Steps, UnreachableError, least_noise
from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.values import Event, Sampling


def epsilon(events: Iterable[Event], delta: float, accountant: Accountant) -> float:
    """Upper bound on epsilon, at ``delta``, of all releases together; infinite if one has no noise.

    Takes from a millisecond to a second; the latest answers are kept.

    Raises:
        ValueError: for an unknown accountant, and a delta that is none.
    """
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant = {accountant!r}: must be one of {', '.join(ACCOUNTANTS)}")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be above 0 and below 1")
    return accounting.epsilon(_steps(merged(events)), delta, accountant)


def answered_by(events: Iterable[Event], delta: float, accountant: Accountant) -> Accountant:
    """Whose answer ``epsilon`` gives: ``rdp``'s where ``prv`` has none.

    Raises as ``epsilon``.
    """
    return accounting.answered_by(_steps(merged(events)), delta, accountant)


def filtered(first: Event, events: Iterable[Event], limit: float | None, delta: float) -> tuple[float, Accountant]:
    """What a filter makes of events that were chosen one after another: see ``atoll.accounting.filtering``.

    Args:
        first: the first event's kind.
        events: all of them.
        limit: epsilon that they may cost together; None for no limit.
        delta: of the limit.
    """
    return accounting.filtered(_steps((first,))[0], _steps(merged(events)), limit, delta)


def _steps(paid: Iterable[Event]) -> list[Steps]:
    return [Steps(event.noise_multiplier, event.sample_rate, event.count) for event in paid]


def merged(events: Iterable[Event]) -> tuple[Event, ...]:
    """The same cost in fewest events: equal ones counted, and all without sampling as one.

    n Gaussian releases with noise multipliers z_i cost exactly what one does with (sum of z_i**-2)**(-1/2).
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
    """The least noise multiplier with which ``event``, whose own is not looked at, costs at most ``target``.

    Asks for some ten accounts; the latest answers are kept. Off by at most a ten-thousandth, upwards.

    Raises:
        InvalidRequestError: if no noise up to a million does, or if the target is not a finite number above 0.
    """
    if not 0 < target < math.inf:
        raise InvalidRequestError(
            "privacy.target", f"epsilon {target} is no target", "choose a finite number above 0 for it"
        )
    return _calibrate(event.sample_rate, event.count, event.sampling, target, delta, accountant)


@lru_cache(maxsize=256)
def _calibrate(  # its arguments are the key of the cache
    rate: float, count: int, sampling: Sampling, target: float, delta: float, accountant: Accountant
) -> float:
    def cost(noise: float) -> float:
        return epsilon((Event(noise, rate, count, sampling),), delta, accountant)

    try:
        return least_noise(cost, target)
    except UnreachableError as error:
        raise InvalidRequestError(
            "privacy.target",
            f"epsilon {target:g} at delta {delta:g} is below what can be accounted for",
            "choose a larger epsilon or delta",
        ) from error
