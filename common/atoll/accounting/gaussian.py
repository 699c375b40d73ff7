"""The Gaussian mechanism, exactly: epsilon, delta and noise of any number of releases.

Balle & Wang 2018 ("Improving the Gaussian Mechanism for Differential Privacy"), theorem 8. ``mu`` is the sensitivity
over the standard deviation of the noise; releases with mu_1, mu_2, ... cost as much as one with the square root of the
sum of their squares (Dong et al. 2022, corollary 3.3), and a limit on that sum also holds if each release is chosen
after earlier results (Smith & Thakurta 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable

_ROOT2 = math.sqrt(2.0)
_FAR = 30.0
"""Number of standard deviations beyond which erfc nearly underflows and its asymptotic series is exact to 1e-8."""
_HALVINGS = 200
_VAST = 1e18
_NO_NOISE = 5e7
"""Above this value epsilon exceeds 10^15 and is treated as infinite."""


def delta_of(epsilon: float, mu: float) -> float:
    """The least delta for which a Gaussian release is (epsilon, delta)-private: theorem 8."""
    if mu == 0.0:
        return 0.0
    if mu == math.inf:
        return 1.0
    upper = _log_tail(epsilon / mu - mu / 2)
    lower = epsilon + _log_tail(epsilon / mu + mu / 2)
    return math.exp(upper) * -math.expm1(min(0.0, lower - upper))


def epsilon_of(delta: float, mu: float) -> float:
    """The least epsilon at a delta, from above, to a relative 1e-12; infinite for delta = 0, and beyond 10^15."""
    if mu == 0.0:
        return 0.0
    if delta == 0.0 or mu > _NO_NOISE:
        return math.inf
    if delta_of(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high, mu) > delta:
        high *= 2
    return _least(lambda epsilon: delta_of(epsilon, mu) <= delta, 0.0, high)


def noise_multiplier_of(epsilon: float, delta: float) -> float:
    """The least standard deviation over the sensitivity for one (epsilon, delta)-private release: algorithm 1.

    From above, to a relative 1e-12.

    Raises:
        ValueError: unless epsilon and delta are above 0, and delta below 1.
    """
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise ValueError(f"a Gaussian release of epsilon = {epsilon}, delta = {delta}; both above 0, delta below 1")
    high = 1.0
    while delta_of(epsilon, 1 / high) > delta:
        high *= 2
    return _least(lambda sigma: delta_of(epsilon, 1 / sigma) <= delta, 0.0, high)


def _least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least value for which a monotone condition holds; it must hold for ``high``, and holds for the result."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if high - low <= 1e-12 * high or not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _log_tail(x: float) -> float:
    """Logarithm of the probability that a standard normal variable exceeds x."""
    if x < _FAR:
        return math.log(math.erfc(x / _ROOT2) / 2)
    square = x * x
    series = 1 - 1 / square + 3 / square**2 - 15 / square**3 if square < _VAST else 1.0
    return -square / 2 - math.log(x * math.sqrt(2 * math.pi)) + math.log(series)
