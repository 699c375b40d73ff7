"""The convolution beside exact sums of losses of two values, which are binomial."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from atoll.accounting import convolving
from atoll.accounting.losses import Atoms


def exact_delta(atoms: Atoms, count: int, epsilon: float) -> Decimal:
    """Sum over k of P(k of ``count`` losses are a step, the others 0) (1 - exp(epsilon - k steps)), where positive."""
    with localcontext(prec=50):
        rest, step = (Decimal(float(mass)) for mass in atoms.masses)
        size, bound, total = Decimal(atoms.step), Decimal(epsilon), Decimal(0)
        first = int(bound / size) + 1
        for k in range(first, first + 60):
            total += math.comb(count, k) * step**k * rest ** (count - k) * (1 - (bound - k * size).exp())
        return total


@pytest.mark.parametrize(
    ("count", "chance", "delta"),
    [(10**6, 3e-6, 1e-5), (10**6, 1e-5, 1e-5), (10**7, 1e-6, 1e-5), (10**7, 1e-6, 1e-10)],
)
def test_what_rounding_does_to_a_million_weights_is_counted(
    count: int, chance: float, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of delta for sums beyond the window, none of which there are here, would hide it: it is 10^-4.

    The transform's error alone is too little: without ``_weights_error`` the first, third and fourth are below the
    exact epsilon (by 3e-11, 7e-10 and 1e-9 of delta).
    """
    monkeypatch.setattr(convolving, "_LEFT_OUT", 1e-16)
    atoms = Atoms(1 / math.sqrt(count * chance * (1 - chance)), 0, np.array([1 - chance, chance]), 0.0)
    total = convolving._Sum([(atoms, count)])
    found = total.epsilon(total.chernoff_tilt(delta), delta)
    exact = exact_delta(atoms, count, found)
    assert Decimal(delta) * (1 - Decimal("1e-6")) < exact <= Decimal(delta)
