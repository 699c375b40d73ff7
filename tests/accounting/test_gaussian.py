"""The Gaussian mechanism against published values, and against Balle & Wang 2018's algorithm 1 written another way."""

from __future__ import annotations

import math

import pytest
from scipy import optimize
from scipy.stats import norm

from atoll.accounting.gaussian import delta_of, epsilon_of, noise_multiplier_of


@pytest.mark.parametrize(
    ("noise_multiplier", "releases", "delta", "epsilon"),
    [(1.0, 1, 1e-5, 4.3772), (4.0, 100, 1e-5, 13.2067)],
)
def test_published_values(noise_multiplier: float, releases: int, delta: float, epsilon: float) -> None:
    """Exact figures of privacy-loss distributions for the Gaussian without sampling (dp-accounting 0.6)."""
    assert epsilon_of(delta, math.sqrt(releases) / noise_multiplier) == pytest.approx(epsilon, abs=5e-5)


def algorithm_1(epsilon: float, delta: float) -> float:
    """Balle & Wang 2018, algorithm 1, with sensitivity 1."""
    first = norm.cdf(0) - math.exp(epsilon + norm.logcdf(-math.sqrt(2 * epsilon)))
    sign = 1.0 if delta >= first else -1.0

    def b(v: float) -> float:
        lower = math.exp(epsilon + norm.logcdf(-math.sqrt(epsilon * (v + 2))))
        return float(norm.cdf(sign * math.sqrt(epsilon * v))) - lower - delta

    v = float(optimize.root_scalar(b, bracket=(0.0, 1e9), method="brentq", xtol=1e-14).root)
    alpha = math.sqrt(1 + v / 2) - sign * math.sqrt(v / 2)
    return alpha / math.sqrt(2 * epsilon)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-5, 1e-3, 0.1])
def test_calibration_is_algorithm_1(epsilon: float, delta: float) -> None:
    assert noise_multiplier_of(epsilon, delta) == pytest.approx(algorithm_1(epsilon, delta), rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0, 300.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.3])
def test_calibrated_noise_is_enough_and_hardly_more(epsilon: float, delta: float) -> None:
    found = noise_multiplier_of(epsilon, delta)
    assert delta_of(epsilon, 1 / found) <= delta
    assert delta_of(epsilon, 1 / (found * (1 - 1e-6))) > delta
    assert epsilon_of(delta, 1 / found) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 2.0, 50.0])
def test_delta_is_theorem_8(mu: float, epsilon: float) -> None:
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    expected = math.exp(norm.logcdf(a)) - math.exp(epsilon + norm.logcdf(b))
    assert delta_of(epsilon, mu) == pytest.approx(expected, rel=1e-6, abs=1e-300)


def test_the_ends() -> None:
    assert epsilon_of(1e-5, 0.0) == 0.0 == delta_of(0.0, 0.0)
    assert epsilon_of(0.0, 1.0) == math.inf == epsilon_of(1e-5, math.inf) == epsilon_of(1e-5, 1e300)
    assert epsilon_of(1e-5, 4e7) == pytest.approx(8e14, rel=1e-6)
    assert delta_of(1.0, math.inf) == 1.0
    assert epsilon_of(0.5, 0.1) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.1)])
def test_what_no_noise_can_keep_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="both above 0"):
        noise_multiplier_of(epsilon, delta)
