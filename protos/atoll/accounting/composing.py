"""Epsilon of Gaussian releases together, whoever was in each of them drawn independently (Poisson sampling).

Two accountants, both upper bounds:

- ``rdp``: see ``renyi``.
- ``prv``: Opacus' numerical composition of privacy loss distributions (Gopi et al. 2021), which is tighter. It works in
  float64: where rounding could reach a hundredth of delta (it was seen below the truth at delta = 1e-12), where the
  grid would grow beyond ``MAX_POINTS``, or where it fails, ``rdp`` answers.

Opacus' third one (GDP, a central limit theorem) is not used: it is no upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from atoll.accounting.loading import opacus_accountants
from atoll.accounting.renyi import ACCOUNTANTS, ORDERS, Accountant, Curve, converted, divergences

PRV_ERROR = 0.01
"""What the numerical composition may be off by, in epsilon; added to its result."""
MAX_POINTS = 1 << 20
"""Of the grid of the numerical composition: about two seconds."""
_FLOAT_ERROR = 2.0**-53
_MAX_LOSS = 600.0
"""Beyond that exponentials of privacy losses overflow."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Releases of one kind, each with fresh noise and a fresh draw.

    Attributes:
        noise_multiplier: standard deviation of the noise over what adding or removing one moves the sum by, at most.
        sample_rate: chance of each to be in a release, in (0, 1].
        count: how many.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    count: int = 1


def epsilon(steps: Iterable[Steps], delta: float, accountant: Accountant) -> float:
    """Upper bound on epsilon, at ``delta``, of all releases together; infinite if one has no noise.

    Takes from a millisecond to a few seconds; the latest answers are kept. Kinds are best given once each.

    Raises:
        ValueError: for an unknown accountant, or a delta that is none.
        OpacusMissingError: if it is needed and not installed.
    """
    paid = _paid(steps, delta, accountant)
    if not paid:
        return 0.0
    if any(one.noise_multiplier == 0 for one in paid):
        return math.inf
    return _answer(paid, delta, accountant)[0]


def answered_by(steps: Iterable[Steps], delta: float, accountant: Accountant) -> Accountant:
    """Whose answer ``epsilon`` gives: where ``prv`` is asked and has none, or no smaller one, it is ``rdp``'s.

    Raises as ``epsilon``.
    """
    paid = _paid(steps, delta, accountant)
    if not paid or any(one.noise_multiplier == 0 for one in paid):
        return accountant
    return _answer(paid, delta, accountant)[1]


def _paid(steps: Iterable[Steps], delta: float, accountant: Accountant) -> tuple[Steps, ...]:
    """Those that cost anything."""
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant = {accountant!r}: must be one of {', '.join(ACCOUNTANTS)}")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be above 0 and below 1")
    return tuple(one for one in steps if one.count and not math.isinf(one.noise_multiplier))


@lru_cache(maxsize=4096)
def _answer(paid: tuple[Steps, ...], delta: float, accountant: Accountant) -> tuple[float, Accountant]:
    by_rdp = converted(_together(paid), delta)
    by_prv = math.inf if accountant == "rdp" else _by_prv(paid, delta)
    return (by_prv, "prv") if by_prv < by_rdp else (by_rdp, "rdp")


def _together(paid: tuple[Steps, ...]) -> Curve:
    total = np.zeros(ORDERS.size)
    for one in paid:
        total += one.count * divergences(one.noise_multiplier, one.sample_rate)
    return total


def _by_prv(paid: tuple[Steps, ...], delta: float) -> float:
    """By numerical composition, as an upper bound; infinite where it would not be one, or would take too long."""
    releases = sum(one.count for one in paid)
    outside = delta / 1000
    error, points = _grid(paid, releases, outside)
    rounding = releases * math.log2(points) * _FLOAT_ERROR
    if points > MAX_POINTS or rounding > delta / 100:
        return math.inf
    accountant = opacus_accountants().PRVAccountant()
    accountant.history = [(one.noise_multiplier, one.sample_rate, one.count) for one in paid]
    try:
        with np.errstate(all="ignore"):
            found = float(accountant.get_epsilon(delta - rounding, eps_error=error, delta_error=outside))
    except (RuntimeError, ValueError):  # its own checks of precision
        return math.inf
    return math.inf if math.isnan(found) else found


def _grid(paid: tuple[Steps, ...], releases: int, outside: float) -> tuple[float, float]:
    """Error in epsilon and points of the grid, of which at most ``outside`` of the distribution may lie out of reach.

    As Opacus chooses it (Gopi et al. 2021, remark 5.6). The error is ``PRV_ERROR``, and where that needs too many
    points up to a fiftieth of epsilon.
    """
    alone = (divergences(one.noise_multiplier, one.sample_rate) for one in paid)
    single = max(converted(curve, outside / (8 * releases)) for curve in alone)
    together = converted(_together(paid), outside / 4)
    reach = max(together, single, PRV_ERROR) + 3
    if reach > _MAX_LOSS:
        return PRV_ERROR, math.inf
    points = 2 * reach / PRV_ERROR * math.sqrt(releases * math.log(12 / outside) / 2)
    coarser = max(1.0, points / MAX_POINTS)
    if coarser * PRV_ERROR > min(0.5, together / 50):
        return PRV_ERROR, points
    return coarser * PRV_ERROR, points / coarser
