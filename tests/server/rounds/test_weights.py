"""Integer weights against exact fractions."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.rounds.weights import integer_weight, staleness_factor


@given(st.integers(0, 1000), st.floats(0, 20))
def test_the_staleness_factor_is_a_discount(staleness: int, exponent: float) -> None:
    factor = staleness_factor(staleness, exponent)
    assert 0 < factor <= 1
    assert factor == pytest.approx(max((1 + staleness) ** -exponent, 2.0**-64), rel=1e-12)
    assert staleness_factor(0, exponent) == 1.0
    assert staleness_factor(staleness, 0.0) == 1.0


def test_the_polynomial_discount_of_fedasync() -> None:
    """Xie et al. 2019, section 5.2: (t - tau + 1) ** -a, here with a = 0.5."""
    assert [staleness_factor(s, 0.5) for s in (0, 3, 8)] == [1.0, 0.5, pytest.approx(1 / 3)]


@given(st.integers(1, 1 << 40), st.integers(0, 24), st.floats(2.0**-64, 1.0))
def test_the_integer_weight_is_the_nearest_and_never_nothing(units: int, shift: int, factor: float) -> None:
    weight = integer_weight(units, shift, factor)
    exact = Fraction(factor) * units * 2**shift
    assert 1 <= weight <= units << shift
    assert weight == 1 or abs(weight - exact) <= Fraction(1, 2)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 40), st.integers(0, 24))
def test_ratios_of_fresh_weights_are_exact(a: int, b: int, shift: int) -> None:
    assert integer_weight(a, shift) * b == integer_weight(b, shift) * a
