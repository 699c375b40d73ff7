"""What releases cost together: epsilon at a delta, and the least noise that meets a target.

Accountants, with what each is valid for, are ``atoll.accounting``'s; ``without_replacement`` adds cohorts of fixed
size, by ``rdp`` alone.

Noise is accounted as continuous. The discrete Gaussian has the same Rényi divergences or smaller ones (Canonne, Kamath,
Steinke 2020, theorem 4), and at the standard deviations used, 2**16 grid units and more, its other divergences differ
by less than float64 can tell.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from atoll import accounting
from atoll.accounting import ACCOUNTANTS, Accountant, OpacusMissingError, Steps, UnreachableError, least_noise
from atoll.accounting.renyi import ORDERS, Curve, converted
from atoll.server.errors import InvalidRequestError, SetupError
from atoll.server.privacy.values import Event, Sampling
from atoll.server.privacy.without_replacement import MAX_ORDER, subsampled_divergence
from atoll.wire.installing import install_hint


def epsilon(events: Iterable[Event], delta: float, accountant: Accountant) -> float:
    """Upper bound on epsilon, at ``delta``, of all releases together; infinite if one has no noise.

    Takes from a millisecond to a few seconds; the latest answers are kept.

    Raises:
        ValueError: for an unknown accountant, a delta that is none, and events without a common account: fixed-size
            sampling beside other events (adjacencies differ), or with ``prv``.
        SetupError: if Opacus is not installed.
    """
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant = {accountant!r}: must be one of {', '.join(ACCOUNTANTS)}")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be above 0 and below 1")
    paid = merged(events)
    fixed = [event for event in paid if event.sampling is Sampling.FIXED_SIZE]
    if fixed and len(fixed) < len(paid):
        raise ValueError("fixed-size sampling speaks of replacing one participant, the other events of removing one")
    if fixed and accountant == "prv":
        raise ValueError('accountant "prv" is not valid for sampling without replacement; use "rdp"')
    if fixed:
        return _without_replacement(fixed, delta)
    with _opacus_needed():
        return accounting.epsilon(_steps(paid), delta, accountant)


def answered_by(events: Iterable[Event], delta: float, accountant: Accountant) -> Accountant:
    """Whose answer ``epsilon`` gives: ``rdp``'s where ``prv`` has none at such a delta, or no smaller one.

    Raises as ``epsilon``.
    """
    paid = merged(events)
    if accountant == "rdp" or any(event.sampling is Sampling.FIXED_SIZE for event in paid):
        return "rdp"
    with _opacus_needed():
        return accounting.answered_by(_steps(paid), delta, accountant)


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
        if event.sampling is Sampling.NONE or (event.sample_rate == 1 and event.sampling is Sampling.POISSON):
            precision += math.inf if event.noise_multiplier == 0 else event.count / event.noise_multiplier**2
        else:
            counts[_single(event)] += event.count
    found = [Event(one.noise_multiplier, one.sample_rate, count, one.sampling) for one, count in counts.items()]
    if precision:
        found.append(Event(precision**-0.5))
    return tuple(sorted(found, key=lambda one: (one.sampling, one.sample_rate, one.noise_multiplier)))


def _single(event: Event) -> Event:
    return Event(event.noise_multiplier, event.sample_rate, 1, event.sampling)


def _without_replacement(paid: Sequence[Event], delta: float) -> float:
    if any(event.noise_multiplier == 0 for event in paid):
        return math.inf
    total = np.zeros(ORDERS.size)
    for event in paid:
        total += event.count * _fixed_size(event.noise_multiplier, event.sample_rate)
    return converted(total, delta)


@lru_cache(maxsize=256)
def _fixed_size(noise_multiplier: float, rate: float) -> Curve:
    """Of one release, at ``ORDERS``; infinite at those that are not whole or beyond ``MAX_ORDER``: no bound is known.

    The noise is told over one clip norm, and replacing one participant moves the sum by two.
    """
    known = [order.is_integer() and order <= MAX_ORDER for order in map(float, ORDERS)]
    found = np.full(ORDERS.size, math.inf)
    found[known] = [subsampled_divergence(rate, noise_multiplier / 2, int(order)) for order in ORDERS[known]]
    found.flags.writeable = False
    return found


def calibrate(event: Event, target: float, delta: float, accountant: Accountant) -> float:
    """The least noise multiplier with which ``event``, whose own is not looked at, costs at most ``target``.

    Takes up to some ten seconds with ``prv`` and many releases; the latest answers are kept. Off by at most a
    ten-thousandth, upwards.

    Raises:
        InvalidRequestError: if no noise up to a million does, or if the target is not a finite number above 0.
        SetupError: if Opacus is not installed.
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
    def cost(noise: float, by: Accountant) -> float:
        return epsilon((Event(noise, rate, count, sampling),), delta, by)

    try:
        return least_noise(cost, target, accountant)
    except UnreachableError as error:
        raise InvalidRequestError(
            "privacy.target",
            f"epsilon {target:g} at delta {delta:g} is below what can be accounted for",
            "choose a larger epsilon or delta",
        ) from error


@contextmanager
def _opacus_needed() -> Iterator[None]:
    try:
        yield
    except OpacusMissingError as error:
        raise SetupError(
            "privacy.opacus",
            f"a private run needs Opacus for its account: {error}",
            f"{install_hint('server,privacy')}, where the server runs; an image of it is built with "
            "--build-arg EXTRAS=server,otel,privacy",
        ) from error
