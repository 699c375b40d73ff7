"""Sensitivities against the matrices themselves: every pattern of participation, on small cases."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.mechanisms.sensitivity import (
    banded_allowance,
    banded_coefficients,
    banded_squares,
    gaussian_squares,
    toeplitz_squares,
    tree_squares,
)
from atoll.server.privacy.mechanisms.strategy import Strategy

Matrix = npt.NDArray[np.float64]


def patterns(rounds: int, separation: int, most: int, first: int = 0) -> Iterator[tuple[int, ...]]:
    """Every set of rounds that one participant can be in."""
    yield ()
    if most:
        for start in range(first, rounds):
            for later in patterns(rounds, separation, most - 1, start + separation):
                yield (start, *later)


def largest(matrix: Matrix, separation: int, most: int) -> float:
    """Choquette-Choo et al. 2023 ("Multi-Epoch ..."), Section 3, with equal contributions: no entry is negative."""
    gram = matrix.T @ matrix
    return max(float(gram[np.ix_(list(one), list(one))].sum()) for one in patterns(matrix.shape[1], separation, most))


def tree_matrix(rounds: int) -> Matrix:
    """Kairouz et al. 2021, Section 3: row t is the node that round t completes."""
    matrix = np.zeros((rounds, rounds))
    for last in range(1, rounds + 1):
        matrix[last - 1, last - (last & -last) : last] = 1
    return matrix


def banded_matrix(rounds: int, bands: int) -> Matrix:
    coefficients = banded_coefficients(bands)
    return np.array(
        [
            [coefficients[row - column] if 0 <= row - column < bands else 0.0 for column in range(rounds)]
            for row in range(rounds)
        ]
    )


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 11])
def test_no_pattern_moves_the_tree_by_more(rounds: int) -> None:
    for separation in range(1, rounds + 1):
        for most in range(1, rounds + 1):
            exact, bound = largest(tree_matrix(rounds), separation, most), tree_squares(rounds, separation, most)[-1]
            assert bound > exact - 1e-9
            if separation & (separation - 1) == 0:
                assert bound == pytest.approx(exact)


def test_the_trees_bound_is_not_far_off_at_any_separation() -> None:
    ratios = [
        tree_squares(12, separation, most)[-1] / largest(tree_matrix(12), separation, most)
        for separation in range(1, 13)
        for most in (2, 3, 12)
    ]
    assert 1.0 <= max(ratios) < 1.45


def test_one_participation_touches_one_node_of_each_size() -> None:
    """Kairouz et al. 2021, Theorem 4.1's ceil(lg(n + 1)) at n = 2**k - 1."""
    assert [tree_squares(rounds, rounds, 1)[-1] for rounds in (1, 3, 7, 1023)] == [1, 2, 3, 10]


def test_being_in_every_round_adds_up_within_nodes() -> None:
    """Nodes of 1, 2 and 4 rounds, all of them filled: 1, 2, 1, 4 squared."""
    assert tree_squares(4, 1, 4)[-1] == pytest.approx(1 + 4 + 1 + 16)


@pytest.mark.parametrize(
    "first",
    [
        Strategy((0.9375,), (0.75,), 6).coefficients(11),
        Strategy((0.5, 0.9375), (0.25, 0.125), 6).coefficients(11),
        Strategy((0.125, 0.96875), (0.875, 0.125), 6).coefficients(10),
        np.ones(9),
        np.array([1.0, 0.9, 0.2, 0.2, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_sensitivity_of_falling_toeplitz_matrices_is_that_of_the_matrix(first: Matrix) -> None:
    """Kalinin and Lampert 2024, Theorem 2: every pattern of participation, columns that overlap too."""
    rounds = first.size
    matrix = np.array(
        [[first[row - column] if row >= column else 0.0 for column in range(rounds)] for row in range(rounds)]
    )
    for separation in range(1, rounds + 1):
        for most in (1, 2, 3, rounds):
            found = toeplitz_squares(first, separation, most)
            assert found[-1] == pytest.approx(largest(matrix, separation, most))
            assert found[4] == pytest.approx(largest(matrix[:5, :5], separation, most))


@pytest.mark.parametrize(("bands", "rounds"), [(1, 6), (2, 9), (3, 10), (4, 11)])
def test_the_banded_sensitivity_is_that_of_the_matrix(bands: int, rounds: int) -> None:
    """Choquette-Choo et al. 2023, "(Amplified) Banded ...", Section 3: not a bound but the maximum."""
    for separation in range(bands, rounds + 1):
        for most in range(1, 5):
            exact = largest(banded_matrix(rounds, bands), separation, most)
            assert banded_squares(bands, rounds, separation, most)[-1] == pytest.approx(exact)


def test_full_columns_give_k_times_the_columns_squared_norm() -> None:
    square = sum(one * one for one in banded_coefficients(8))
    assert banded_squares(8, 1000, 100, 4)[-1] == pytest.approx(4 * square)


def test_more_bands_than_separation_are_refused() -> None:
    with pytest.raises(ValueError, match="5 bands: at most min_separation, 4"):
        banded_squares(5, 10, 4, 2)


def test_coefficients_are_those_of_the_square_root_of_prefix_sums() -> None:
    """Fichtenberger, Henzinger, Upadhyay 2023, Section 3: the matrix times itself is all ones below the diagonal."""
    rounds = 40
    matrix = banded_matrix(rounds, rounds)
    np.testing.assert_allclose(matrix @ matrix, np.tril(np.ones((rounds, rounds))), atol=rounds * 2.0**-20)
    assert banded_coefficients(4) == (1.0, 0.5, 0.375, 0.3125)
    assert all((one * 2**20).is_integer() for one in banded_coefficients(50))


def test_prefixes_are_shorter_runs() -> None:
    for rounds in range(1, 20):
        assert tree_squares(19, 3, 4)[rounds - 1] == pytest.approx(tree_squares(rounds, 3, 4)[-1])
        assert banded_squares(3, 19, 4, 3)[rounds - 1] == pytest.approx(banded_squares(3, rounds, 4, 3)[-1])
        assert gaussian_squares(19, 2, 3)[rounds - 1] == pytest.approx(gaussian_squares(rounds, 2, 3)[-1])


def test_no_release_gives_budget_back() -> None:
    blt = toeplitz_squares(Strategy((0.9375,), (0.75,), 6).coefficients(200), 7, 11)
    for squares in (tree_squares(200, 7, 11), banded_squares(5, 200, 7, 11), gaussian_squares(200, 7, 11), blt):
        assert np.diff(squares, prepend=0.0).min() >= 0
        assert squares[0] == 1.0


def test_without_constraint_independent_noise_costs_every_round() -> None:
    assert gaussian_squares(25, 1, 25)[-1] == 25
    assert gaussian_squares(25, 1, 4)[-1] == 4
    assert gaussian_squares(25, 5, 25)[-1] == 5


def test_the_allowance_covers_what_rounding_adds_in_every_prefix() -> None:
    """||c||_m S + sqrt(d m) <= ||c||_m (S + allowance), m rounds after a contribution of norm S."""
    dimension, bands = 1000, 6
    allowance = banded_allowance(dimension, bands)
    norms = np.sqrt(np.cumsum(np.square(banded_coefficients(bands))))
    slack = [norms[m] * allowance - math.sqrt(dimension * m) for m in range(bands)]
    assert min(slack) == pytest.approx(0.0, abs=1e-9)
    assert banded_allowance(dimension, 1) == 0.0


@pytest.mark.parametrize("bad", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_nothing_less_than_one_is_taken(bad: tuple[int, int, int]) -> None:
    for function in (tree_squares, gaussian_squares):
        with pytest.raises(ValueError, match="each is at least 1"):
            function(*bad)


def test_a_tree_that_would_take_minutes_to_account_for_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="1000000 rounds with up to 500000 participations") as refused:
        tree_squares(1_000_000, 2, 1_000_000)
    assert "max_participations to 100 or less" in refused.value.detail.remedy
