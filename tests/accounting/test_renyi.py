"""Divergences and their conversion are Opacus'; what it cannot work out does not count."""

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
    assert ours == pytest.approx(accountant.get_epsilon(1e-5, alphas=ORDERS.tolist()), rel=1e-12)
    curve = 300 * divergences(1.1, 0.01) + 4 * divergences(2.0, 1.0)
    theirs, _ = get_privacy_spent(orders=ORDERS.tolist(), rdp=curve.tolist(), delta=1e-5)
    assert converted(curve, 1e-5) == pytest.approx(float(theirs), rel=1e-12)


def test_whatever_opacus_cannot_sum_is_left_out() -> None:
    """Tiny rates with wide noise cancel to nothing, in places to less: those orders do not count."""
    curve = divergences(1000.0, 1e-6)
    assert np.all(curve >= 0)
    assert converted(curve, 1e-5) < 0.05
