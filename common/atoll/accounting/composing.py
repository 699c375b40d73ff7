"""Total epsilon of Gaussian releases, each over an independent draw of the samples (Poisson sampling).

Two accountants, both upper bounds for releases whose number and noise are fixed beforehand:

- ``prv``: exact without sampling (``gaussian``); else the convolution of privacy losses (``convolving``).
- ``rdp``: Rényi divergences (``renyi``), which are looser, and replace a convolution that would need too many points.

For releases that are chosen after earlier results use ``filtering``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from atoll.accounting.convolving import epsilon_by_convolution
from atoll.accounting.gaussian import epsilon_of
from atoll.accounting.renyi import ACCOUNTANTS, Accountant, converted, together
from atoll.accounting.steps import Steps


def epsilon(steps: Iterable[Steps], delta: float, accountant: Accountant) -> float:
    """Upper bound on epsilon, at ``delta``, of all releases together; infinite if one has no noise.

    Takes from a millisecond to a second; recent results are cached. Merge steps of one kind into one entry for speed.

    Raises:
        ValueError: for an unknown accountant, or a delta outside (0, 1).
    """
    paid = _paid(steps, delta, accountant)
    if not paid:
        return 0.0
    if any(one.noise_multiplier == 0 for one in paid):
        return math.inf
    return _answer(paid, delta, accountant)[0]


def answered_by(steps: Iterable[Steps], delta: float, accountant: Accountant) -> Accountant:
    """The accountant behind the result of ``epsilon``: ``rdp`` if ``prv`` was requested and has no result.

    Raises as ``epsilon``.
    """
    paid = _paid(steps, delta, accountant)
    if not paid or any(one.noise_multiplier == 0 for one in paid):
        return accountant
    return _answer(paid, delta, accountant)[1]


def _paid(steps: Iterable[Steps], delta: float, accountant: Accountant) -> tuple[Steps, ...]:
    """The steps with a cost."""
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant = {accountant!r}: must be one of {', '.join(ACCOUNTANTS)}")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be above 0 and below 1")
    return tuple(one for one in steps if one.count and not math.isinf(one.noise_multiplier))


@lru_cache(maxsize=4096)
def _answer(paid: tuple[Steps, ...], delta: float, accountant: Accountant) -> tuple[float, Accountant]:
    by_prv = math.inf if accountant == "rdp" else _by_prv(paid, delta)
    return (by_prv, "prv") if math.isfinite(by_prv) else (converted(together(paid), delta), "rdp")


def _by_prv(paid: tuple[Steps, ...], delta: float) -> float:
    if any(one.sample_rate < 1 for one in paid):
        return epsilon_by_convolution(paid, delta)
    return epsilon_of(delta, math.sqrt(sum(one.count / one.noise_multiplier**2 for one in paid)))
