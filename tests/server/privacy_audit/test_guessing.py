"""The success of the best guesser, and the best number of guesses (Steinke, Nasr, Jagielski 2023, Algorithm 1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from atoll.server.privacy_audit.bounds import Guesses, epsilon_at_least
from atoll.server.privacy_audit.evidence import Attack
from atoll.server.privacy_audit.guessing import Reach, best_reach, strongest
from tests.server.privacy_audit.contracts import POISSON, contract


def test_the_surest_are_guessed_by_the_sign_of_their_scores() -> None:
    scores = np.array([5.0, -4.0, 3.0, -0.1, 0.2, -0.3])
    coins = np.array([True, True, True, False, False, False])
    assert Reach(Attack(contract()), 0.5, 1.0).guess(scores, coins) == Guesses(6, 3, 2)
    assert Reach(Attack(contract()), 1.0, 1.0).guess(scores, coins) == Guesses(6, 6, 4)


def test_next_to_no_noise_makes_every_canary_worth_a_guess_and_much_noise_few() -> None:
    rng, attack = np.random.default_rng(1), Attack(contract())
    assert best_reach(replace(attack, noise_share=0.1), 4096, 1e-5, 0.95, rng).share == 1.0
    found = best_reach(attack, 4096, 1e-5, 0.95, rng)
    assert found.share < 0.2
    assert found.right > 0.85


def test_canaries_that_were_perhaps_never_drawn_are_not_guessed() -> None:
    silent = best_reach(replace(Attack(POISSON), noise_share=0.1), 4096, 1e-5, 0.95, np.random.default_rng(1))
    assert 0.4 < silent.share < 0.5  # those that are seen; the others are out, or in and never drawn
    assert silent.right > 0.999


def test_each_of_several_guesses_is_held_to_its_part_of_the_error() -> None:
    good, bad = Guesses(1000, 100, 95), Guesses(1000, 100, 50)
    best, bound = strongest([bad, good], 1e-5, 0.95)
    assert best == good
    assert bound == pytest.approx(epsilon_at_least(good, 1e-5, 0.975))


def test_more_canaries_let_an_audit_see_more() -> None:
    attack = Attack(POISSON)
    few, many = (best_reach(attack, count, 1e-5, 0.95, np.random.default_rng(1)) for count in (4096, 32768))
    bounds = [epsilon_at_least(one.expected(count), 1e-5) for one, count in ((few, 4096), (many, 32768))]
    assert 1.0 < bounds[0] < bounds[1]
