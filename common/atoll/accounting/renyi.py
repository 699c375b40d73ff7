"""Rényi divergences of Gaussian releases with Poisson sampling, and the resulting epsilon.

Divergences add up over releases. Each is the divergence of (1 - q) N(0, s^2) + q N(1, s^2) from N(0, s^2), the larger
of the two directions (Mironov, Talwar and Zhang 2019, theorem 5). It is integrated by the trapezoidal rule, whose error
decreases exponentially for such functions; the conversion to epsilon follows Balle et al. 2020, theorem 21.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from atoll.accounting.steps import Steps

Accountant = Literal["prv", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
Curve = npt.NDArray[np.float64]

ORDERS = np.array(
    [
        *(1 + step / 10 for step in range(1, 100)),
        *range(11, 65),
        *(72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024),
    ]
)
"""Orders of Rényi divergence."""
_REACH = 12.0
"""Standard deviations of the integration range; the mass beyond is below e^-72."""
_MAX_NODES = 1 << 17
_ROUNDING = 1e-14
"""Allowance for rounding in the logarithm of a moment, upwards."""


@lru_cache(maxsize=1024)
def divergences(noise_multiplier: float, sample_rate: float) -> Curve:
    """Rényi divergences of one release, at ``ORDERS``; read only."""
    found = ORDERS / (2 * noise_multiplier**2)  # never more than without sampling
    if sample_rate < 1:
        sampled = [_sampled(sample_rate, noise_multiplier, float(order)) for order in ORDERS]
        found = np.minimum(found, sampled)
    found.flags.writeable = False
    return found


def together(paid: Iterable[Steps]) -> Curve:
    """Rényi divergences of all releases together, at ``ORDERS``."""
    total = np.zeros(ORDERS.size)
    for one in paid:
        total += one.count * divergences(one.noise_multiplier, one.sample_rate)
    return total


def converted(curve: Curve, delta: float) -> float:
    """Epsilon at delta from divergences at ``ORDERS`` (Balle et al. 2020, theorem 21)."""
    found = curve - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1) + np.log1p(-1 / ORDERS)
    return max(0.0, float(np.min(found)))


def _sampled(rate: float, sigma: float, order: float) -> float:
    """E over N(0, s^2) of (1 - q + q exp((2x - 1) / 2s^2))^order, as a divergence; infinite if it takes too long.

    The function is analytic within pi s^2 of the real line, so a step of s^2 / 4 gives an error of e^-78; for the
    Gaussian a step of s / 2 does.
    """
    step = min(sigma / 2, sigma**2 / 4)
    nodes = (order + 2 * _REACH * sigma) / step
    if nodes > _MAX_NODES:
        return math.inf
    x = -_REACH * sigma + step * np.arange(math.ceil(nodes) + 1)
    density = -(x**2) / (2 * sigma**2) + math.log(step / (sigma * math.sqrt(2 * math.pi)))
    exponents = density + order * np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2))
    largest = float(exponents.max())
    log_moment = largest + math.log(float(np.exp(exponents - largest).sum()))
    return max(0.0, log_moment + _ROUNDING) / (order - 1)
