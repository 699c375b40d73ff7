"""The smallest noise multiplier that meets a target epsilon."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

Cost = Callable[[float], float]
"""Epsilon of all releases with a noise multiplier."""

MAX_NOISE = 1e6
_TOLERANCE = 1 + 1e-4


class TargetUnreachableError(ValueError):
    """No noise multiplier meets the target."""


def least_noise(cost: Cost, target: float) -> float:
    """The least noise multiplier whose epsilon is at most ``target``; too large by at most a ten-thousandth.

    Evaluates about ten epsilons.

    Raises:
        ValueError: for a target that is not a finite number above 0.
        TargetUnreachableError: if no noise up to ``MAX_NOISE`` meets the target.
    """
    if not 0 < target < math.inf:
        raise ValueError(f"an epsilon of {target} to calibrate to: must be a finite number above 0")
    low, high = 1.0, 1.0
    while cost(low) <= target:
        high, low = low, low / 2
    while cost(high) > target:
        if high > MAX_NOISE:
            raise TargetUnreachableError(f"epsilon {target:g} is below what can be accounted for")
        low, high = high, high * 2
    return _least(low, high, lambda noise: cost(noise) / target)


def _least(low: float, high: float, share: Callable[[float], float], tolerance: float = _TOLERANCE) -> float:
    """A noise multiplier at which ``share`` is at most 1, and at most ``tolerance`` times the least such multiplier.

    ``share`` maps noise to the used share of the target; it is above 1 at ``low`` and at most 1 at ``high``. The search
    interpolates log(share) over log(noise), shifted slightly to either side in turn so that both ends close in. Every
    fourth step bisects the interval.
    """
    above, below = share(low), share(high)
    for step in itertools.count(1):
        if high / low <= tolerance:
            break
        middle = math.sqrt(low * high)
        if step % 4 and math.isfinite(above) and below > 0:
            where = math.log(above) / (math.log(above) - math.log(below))
            aside = tolerance ** (0.4 if step % 2 else -0.4)
            middle = min(max(low * (high / low) ** where * aside, low * tolerance**0.2), high / tolerance**0.2)
        found = share(middle)
        if found <= 1:
            high, below = middle, found
        else:
            low, above = middle, found
    return high
