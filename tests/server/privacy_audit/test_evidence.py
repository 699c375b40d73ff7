"""Scores of canaries (Steinke, Nasr, Jagielski 2023, Algorithm 1): how much likelier each is in than out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from atoll.server.privacy.contract import Contract
from atoll.server.privacy.mechanisms.sensitivity import banded_coefficients
from atoll.server.privacy_audit.evidence import Attack, Doubles, tree_covariance
from tests.server.privacy_audit.contracts import BANDED, BLT, GAUSSIAN, POISSON, TREE


def test_under_poisson_sampling_a_round_adds_the_logarithm_of_the_likelihood_ratio() -> None:
    found, z, q = np.linspace(-3, 4, 15), 1.3, 0.2
    inside = (1 - q) * norm.pdf(found, 0, z) + q * norm.pdf(found, 1, z)
    assert np.allclose(Attack(POISSON).evidence(3, found), np.log(inside / norm.pdf(found, 0, z)))


def covariance_of(contract: Contract) -> Doubles:
    """Return the covariance of the releases' noise in units of z, from the mechanism's definition."""
    rounds = contract.rounds
    if contract.mechanism == "gaussian":
        return np.eye(rounds)
    if contract.mechanism == "tree":
        return np.asarray(tree_covariance(rounds))
    coefficients = np.zeros(rounds)
    if contract.strategy is not None:
        coefficients[:] = contract.strategy.coefficients(rounds)
    else:
        coefficients[: contract.bands] = banded_coefficients(contract.bands)
    matrix = np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(rounds)] for i in range(rounds)])
    return np.asarray(np.linalg.inv(matrix.T @ matrix))


@pytest.mark.parametrize("contract", [GAUSSIAN, TREE, BANDED, BLT], ids=lambda contract: contract.mechanism)
def test_without_a_draw_the_scores_add_up_to_the_logarithm_of_the_likelihood_ratio(contract: Contract) -> None:
    attack, rng = Attack(contract), np.random.default_rng(2)
    found = rng.standard_normal((contract.rounds, 5))
    scores = sum(attack.evidence(version, row) for version, row in enumerate(found))
    present = np.array([float(version in attack.schedule) for version in range(contract.rounds)])
    covariance = contract.noise_multiplier**2 * covariance_of(contract)
    inverse = np.linalg.inv(covariance)

    def logarithm(row: Doubles, mean: Doubles) -> float:
        """Return the log of the normal density, without terms that do not depend on the mean."""
        return float(-(row - mean) @ inverse @ (row - mean) / 2)

    nothing = np.zeros(contract.rounds)
    ratio = [logarithm(row, present) - logarithm(row, nothing) for row in found.T]
    assert np.allclose(np.asarray(scores), ratio)
    assert attack.information == pytest.approx(2 * (logarithm(present, present) - logarithm(present, nothing)))


def test_the_schedule_is_the_closest_that_the_bounds_allow() -> None:
    assert Attack(TREE).schedule == {0, 4, 8}
    assert Attack(GAUSSIAN).schedule == {0, 1, 2}


def test_prefix_sums_of_a_tree_hold_as_many_nodes_as_binary_digits() -> None:
    covariance = tree_covariance(13)
    prefix = np.tril(np.ones((13, 13)))
    assert np.diag(prefix @ covariance @ prefix.T).tolist() == [t.bit_count() for t in range(1, 14)]


def test_an_attacker_who_expects_no_clipping_measures_in_longer_canaries() -> None:
    found = np.array([0.0, 16.0])
    scores = Attack(GAUSSIAN, unit=16.0).evidence(0, found)
    assert scores[0] == -scores[1]
    assert scores[1] > Attack(GAUSSIAN).evidence(0, np.array([1.0]))[0]
