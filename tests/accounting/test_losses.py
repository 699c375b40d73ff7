"""Discrete losses dominate the continuous ones, and agree with them on the grid."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from atoll.accounting.losses import Atoms, atoms, cdf, tail_quantile

RELEASES = [(1.0, 0.01), (0.4, 0.3), (5.0, 1.0), (0.7, 1e-5), (30.0, 0.999)]
_STEP = 0.01


def exact_delta(noise: float, rate: float, epsilon: float, *, present: bool) -> float:
    """P(loss above) - exp(epsilon) Q(the same) of one release, in closed form."""
    with mpmath.workdps(30):
        odds = (mpmath.e ** (epsilon if present else -epsilon) - 1 + rate) / rate
        if odds <= 0:
            return float(1 - mpmath.e**epsilon) if present else 0.0
        x = noise**2 * mpmath.log(odds) + mpmath.mpf(1) / 2
        out, into = mpmath.ncdf(-x / noise), mpmath.ncdf((1 - x) / noise)
        if present:
            return float((1 - rate) * out + rate * into - mpmath.e**epsilon * out)
        return float((1 - out) - mpmath.e**epsilon * ((1 - rate) * (1 - out) + rate * (1 - into)))


def delta_of(found: Atoms, epsilon: float) -> float:
    above = found.losses > epsilon
    return float(np.sum(found.masses[above] * -np.expm1(epsilon - found.losses[above]))) + found.infinite


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize(("noise", "rate"), RELEASES)
def test_on_the_grid_delta_is_exact_and_between_it_is_an_upper_bound(noise: float, rate: float, present: bool) -> None:
    found = atoms(noise, rate, _STEP, 1e-14, present=present)
    inside = found.losses[::23][:-1]
    for epsilon in inside:
        exact = exact_delta(noise, rate, float(epsilon), present=present)
        assert exact <= delta_of(found, float(epsilon)) * (1 + 1e-9) + 1e-16
        assert delta_of(found, float(epsilon)) == pytest.approx(exact, rel=1e-6, abs=2e-14)
        between = float(epsilon) + _STEP / 3
        assert exact_delta(noise, rate, between, present=present) <= delta_of(found, between) * (1 + 1e-9)


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize(("noise", "rate"), RELEASES)
def test_all_mass_is_there(noise: float, rate: float, present: bool) -> None:
    found = atoms(noise, rate, _STEP, 1e-10, present=present)
    assert 1 - 1e-15 <= float(np.sum(found.masses)) + found.infinite <= 1 + 1e-9
    assert 0 <= found.infinite <= 1e-10
    assert np.all(found.masses >= 0)


def test_the_normal_distribution_is_as_exact_as_the_losses_take_it_to_be() -> None:
    """(8 + 4 x^2) units in the last place, on which their margins rest."""
    points = np.linspace(-37.0, 8.0, 1801)
    with mpmath.workdps(40):
        for x, found in zip(points, cdf(points), strict=True):
            exact = mpmath.ncdf(mpmath.mpf(float(x)))
            assert abs(mpmath.mpf(float(found)) / exact - 1) <= (8 + 4 * float(x) ** 2) * 2.0**-53, x


def test_tail_quantiles_match_the_normal_distribution() -> None:
    assert tail_quantile(0.5) == pytest.approx(0.0, abs=1e-12)
    assert float(cdf(np.array(-tail_quantile(1e-20)))) == pytest.approx(1e-20, rel=1e-9)
    assert math.isclose(tail_quantile(0.025), 1.959964, rel_tol=1e-6)
