"""Divergences against closed forms and Opacus', and their conversion."""

import math

import numpy as np
import pytest
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis.rdp import get_privacy_spent

from atoll.accounting import Steps, epsilon
from atoll.accounting.renyi import ORDERS, converted, divergences


def test_the_conversion_and_the_divergences_are_those_of_opacus() -> None:
    history = [(1.1, 0.01, 300), (2.0, 1.0, 4)]
    accountant = RDPAccountant()
    accountant.history = list(history)
    ours = epsilon([Steps(*one) for one in history], 1e-5, "rdp")
    assert ours == pytest.approx(accountant.get_epsilon(1e-5, alphas=ORDERS.tolist()), rel=1e-9)
    curve = 300 * divergences(1.1, 0.01) + 4 * divergences(2.0, 1.0)
    theirs, _ = get_privacy_spent(orders=ORDERS.tolist(), rdp=curve.tolist(), delta=1e-5)
    assert converted(curve, 1e-5) == pytest.approx(float(theirs), rel=1e-12)


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("noise", [0.3, 1.0, 7.0, 300.0])
def test_whole_orders_are_the_binomial_sum(noise: float, rate: float) -> None:
    """Mironov, Talwar and Zhang 2019, section 3.3."""
    for order in (2, 3, 8, 30):
        terms = [
            math.log(math.comb(order, k) * rate**k) + (order - k) * math.log1p(-rate) + k * (k - 1) / 2 / noise**2
            for k in range(order + 1)
        ]
        exact = np.logaddexp.reduce(terms) / (order - 1)
        found = divergences(noise, rate)[int(np.argmin(np.abs(ORDERS - order)))]
        assert found == pytest.approx(exact, rel=1e-9, abs=3e-14)


def test_sampling_never_costs_more_and_orders_rise() -> None:
    for noise in (0.05, 0.3, 1.0, 1e3):
        sampled, whole = divergences(noise, 0.1), divergences(noise, 1.0)
        assert np.all(np.isfinite(sampled) & (sampled >= 0) & (sampled <= whole))
        assert np.all(np.diff(sampled) >= -1e-13)
