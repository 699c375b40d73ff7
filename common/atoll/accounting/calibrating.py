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
    """No noise keeps a target."""


def least_noise(cost: Cost, target: float) -> float:
    """The least noise multiplier that costs at most ``target``; off by at most a ten-thousandth, upwards.

    Asks for about ten costs.

    Raises:
        ValueError: for a target that is not a finite number above 0.
        TargetUnreachableError: if no noise up to ``MAX_NOISE`` does.
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
    """A noise of which ``share`` of the target is used, at most 1, and at most ``tolerance`` times the least such.

    ``share`` is above 1 at ``low`` and at most 1 at ``high``. By interpolating its logarithm over the noise's, slightly
    to either side in turn, so that both ends close in; every fourth step halves the interval.
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
