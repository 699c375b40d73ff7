"""Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run": Theorem 5.2 and what follows from it."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from atoll.server.privacy_audit.bounds import Guesses, epsilon_at_least, p_value
from tests.properties import examples


def tail(made: int, right: int, q: Fraction) -> Fraction:
    """P[binomial(made, q) >= right], exactly."""
    return sum((math.comb(made, k) * q**k * (1 - q) ** (made - k) for k in range(right, made + 1)), Fraction())


@pytest.mark.parametrize(("made", "right", "odds"), [(10, 9, 1), (40, 31, 2), (100, 80, 3), (100, 100, 50), (7, 0, 4)])
def test_without_delta_the_p_value_is_the_binomial_tail(made: int, right: int, odds: int) -> None:
    exact = tail(made, right, Fraction(odds, odds + 1))  # e^epsilon = odds
    assert p_value(Guesses(1000, made, right), math.log(odds), 0.0) == pytest.approx(float(exact), rel=1e-10)


def test_with_delta_the_worst_mean_of_the_probabilities_just_below_is_added() -> None:
    made, right, q, delta = 30, 25, Fraction(2, 3), 1e-4
    below = [
        (tail(made, right - i, q) - tail(made, right, q)) / i for i in range(1, 200) if right - i >= 0
    ]  # i up to v only: beyond, the numerator stays and i grows
    expected = float(tail(made, right, q)) + 2 * 200 * delta * float(max(below))
    assert p_value(Guesses(200, made, right), math.log(2), delta) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("made", [10, 100, 5000])
def test_guesses_without_a_mistake_have_a_bound_in_closed_form(made: int) -> None:
    q = 0.05 ** (1 / made)
    assert epsilon_at_least(Guesses(made, made, made), 0.0) == pytest.approx(math.log(q / (1 - q)), rel=1e-6)


def test_more_canaries_do_not_always_show_more() -> None:
    """Every canary adds 2 delta to the p-value."""
    few, many = (Guesses(count, count, count) for count in (4096, 65536))
    assert epsilon_at_least(few, 1e-4) > epsilon_at_least(many, 1e-4)


def test_coins_that_are_guessed_blindly_show_nothing() -> None:
    assert epsilon_at_least(Guesses(1000, 1000, 500), 1e-5) == 0.0
    assert epsilon_at_least(Guesses(1000, 0, 0), 1e-5) == 0.0


@settings(max_examples=examples(40), deadline=None)
@given(
    canaries=st.integers(1, 3000),
    made=st.floats(0, 1),
    right=st.floats(0, 1),
    delta=st.sampled_from([0.0, 1e-6, 1e-4, 1e-2]),
)
def test_the_p_value_grows_with_epsilon_where_the_bisection_looks(
    canaries: int, made: float, right: float, delta: float
) -> None:
    guesses = Guesses(canaries, round(made * canaries), round(right * round(made * canaries)))
    values = [p_value(guesses, epsilon, delta) for epsilon in np.linspace(0, 12, 25)]
    first = next((i for i, value in enumerate(values) if value >= 0.5), len(values))
    rising = values[:first]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(rising))
    assert all(value >= 0.05 for value in values[first:])


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 3.0])
def test_randomised_response_is_accused_falsely_at_most_as_often_as_the_confidence_allows(epsilon: float) -> None:
    """Each answer is right with probability exactly q, a mechanism for which the theorem is tight (section 5)."""
    rng, runs, made = np.random.default_rng(5), 4000, 200
    rights = rng.binomial(made, 1 / (1 + math.exp(-epsilon)), runs)
    bound = {int(right): epsilon_at_least(Guesses(made, made, int(right)), 0.0) for right in set(rights.tolist())}
    accused = float(np.mean([bound[int(right)] > epsilon for right in rights]))
    tails = binom.sf(np.arange(-1, made), made, 1 / (1 + math.exp(-epsilon)))
    expected = float(np.max(tails[tails < 0.05]))  # the largest chance below 5 % that a whole number of guesses has
    assert expected > 0.01
    assert accused == pytest.approx(expected, abs=4 * math.sqrt(expected / runs))


@pytest.mark.parametrize("fails_together", [True, False])
def test_a_mechanism_that_gives_all_away_with_probability_delta_stays_within_the_theorem(fails_together: bool) -> None:
    """Randomised response that answers truthfully with probability delta, of all canaries at once or of each."""
    made, epsilon, delta = 300, 1.0, 1e-3
    q = 1 / (1 + math.exp(-epsilon))
    each = delta + (1 - delta) * q
    for right in range(220, 301, 10):
        if fails_together:
            truth = delta + (1 - delta) * float(binom.sf(right - 1, made, q))
        else:
            truth = float(binom.sf(right - 1, made, each))
        assert truth <= p_value(Guesses(made, made, right), epsilon, delta)


def test_two_bounds_of_the_gaussian_mechanism() -> None:
    """z = 1 is (4.3772, 1e-5)-DP (privacy loss distribution). The bound comes close to half, and never above."""
    rng, canaries, made = np.random.default_rng(1), 16384, 1000
    found = []
    for _ in range(20):
        inside = rng.random(canaries) < 0.5
        order = np.argsort(inside + rng.standard_normal(canaries))
        right = np.sum(~inside[order[: made // 2]]) + np.sum(inside[order[-made // 2 :]])
        found.append(epsilon_at_least(Guesses(canaries, made, int(right)), 1e-5))
    assert max(found) < 4.3772
    assert np.mean(found) > 1.8


@pytest.mark.parametrize("numbers", [(0, 0, 0), (10, 11, 3), (10, 5, 6), (10, 5, -1)])
def test_impossible_outcomes_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="impossible"):
        Guesses(*numbers)


def test_numbers_out_of_range_are_refused() -> None:
    guesses = Guesses(10, 10, 9)
    for epsilon, delta in ((-1.0, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match="must be"):
            p_value(guesses, epsilon, delta)
    with pytest.raises(ValueError, match="confidence"):
        epsilon_at_least(guesses, 0.0, 0.3)
