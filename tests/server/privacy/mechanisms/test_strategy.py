"""Parameters of a BLT, and those of least noise (McMahan, Xu, Zhang 2024, arXiv:2408.08868)."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.server.privacy.mechanisms import Strategy
from atoll.server.privacy.mechanisms.optimising import best_strategy
from atoll.server.privacy.mechanisms.prefix_error import QuickError, prefix_error, relative_error
from atoll.server.privacy.mechanisms.sensitivity import banded_coefficients, inverse_column
from atoll.server.privacy.mechanisms.strategy import coefficients, inverse

STRATEGY = Strategy((0.5, 0.9375), (0.25, 0.125), 6)


def error_of(strategy: Strategy, rounds: int, separation: int, most: int) -> float:
    return relative_error(strategy.coefficients(rounds), strategy.inverse(rounds), separation, most)


@pytest.mark.parametrize(
    ("rounds", "separation", "most"),
    [
        (1, 1, 1),
        (7, 2, 2),
        (255, 10, 5),
        (257, 257, 1),
        (2000, 342, 6),
        (2000, 7, 30),
        (5000, 1, 11),
        (5000, 1, 5000),
        (5000, 2, 700),
    ],
)
def test_the_quick_error_is_the_error(rounds: int, separation: int, most: int) -> None:
    quick, rng = QuickError(rounds, separation, most), np.random.default_rng(3)
    for buffers in (1, 2, 5):
        slowness = rng.uniform(0.5, 9, buffers)
        scales = np.exp(-slowness / 2) * rng.uniform(0.02, 0.6, buffers) / buffers
        decays = 1 - np.exp(-slowness)
        exact = prefix_error(coefficients(decays, scales, rounds), inverse(decays, scales, rounds), separation, most)
        assert quick.of(slowness, scales) == pytest.approx(exact, rel=1e-5)


def test_the_error_is_that_of_the_matrices() -> None:
    """Root mean square of the rows of A C^-1, times the norm of C's first columns, here all of one participant's."""
    first = STRATEGY.coefficients(9)
    matrix = np.zeros((9, 9))
    for lag, one in enumerate(first):
        matrix += one * np.eye(9, k=-lag)
    sums = np.tril(np.ones((9, 9))) @ np.linalg.inv(matrix)
    exact = np.sqrt(np.mean(np.sum(np.square(sums), axis=1))) * np.linalg.norm(np.sum(matrix[:, [0, 4, 8]], axis=1))
    assert prefix_error(first, STRATEGY.inverse(9), 4, 3) == pytest.approx(exact)
    assert relative_error(first, STRATEGY.inverse(9), 4, 3) == pytest.approx(exact / np.sqrt(5 * 3))


def test_coefficients_are_those_of_the_matrix_and_its_inverse() -> None:
    first = STRATEGY.coefficients(30)
    assert first[:4].tolist() == [1.0, 0.375, 0.25 * 0.5 + 0.125 * 0.9375, 0.25 * 0.5**2 + 0.125 * 0.9375**2]
    np.testing.assert_allclose(STRATEGY.inverse(30), inverse_column(first, 30), atol=1e-14)


@pytest.mark.parametrize(
    ("decays", "scales", "bits"),
    [
        ((1.0,), (0.5,), 6),
        ((0.0,), (0.5,), 6),
        ((0.5,), (0.0,), 6),
        ((0.5, 0.25), (0.75, 0.5), 6),
        ((0.1,), (0.5,), 6),
        ((0.5,), (0.1,), 6),
        ((0.5,), (0.5,), 0),
        ((0.5,), (0.5,), 11),
        ((0.5,), (0.5, 0.25), 6),
        ((), (), 6),
        ((0.5,) * 6, (0.125,) * 6, 6),
        ((float("nan"),), (0.5,), 6),
    ],
)
def test_what_is_no_exact_falling_matrix_is_refused(
    decays: tuple[float, ...], scales: tuple[float, ...], bits: int
) -> None:
    with pytest.raises(ValueError, match=r"decays|scales|fraction bits"):
        Strategy(decays, scales, bits)


@pytest.mark.parametrize(
    ("rounds", "separation", "most", "at_most"),
    [(1024, 1024, 1, 0.1355), (2000, 342, 6, 0.1181), (256, 64, 4, 0.257), (120, 120, 1, 0.307)],
)
def test_its_noise_is_as_published(rounds: int, separation: int, most: int, at_most: float) -> None:
    strategy = best_strategy(rounds, separation, most)
    assert strategy.buffers <= 3
    assert error_of(strategy, rounds, separation, most) <= at_most


@pytest.mark.parametrize(
    ("rounds", "separation", "most"), [(1024, 1024, 1), (2000, 342, 6), (300, 20, 15), (60, 6, 10)]
)
def test_no_change_of_one_parameter_does_better(rounds: int, separation: int, most: int) -> None:
    strategy = best_strategy(rounds, separation, most)
    least = error_of(strategy, rounds, separation, most)
    for index in range(strategy.buffers):
        for share in (0.97, 1.03):
            scales = list(strategy.scales)
            scales[index] = round(scales[index] * share * 2**24) / 2**24
            if sum(scales) <= 1:
                other = Strategy(strategy.decays, tuple(scales), strategy.fraction_bits)
                assert error_of(other, rounds, separation, most) > least * (1 - 1e-5)
            decays = list(strategy.decays)
            decays[index] = round((1 - (1 - decays[index]) * share) * 2**24) / 2**24
            other = Strategy(tuple(decays), strategy.scales, strategy.fraction_bits)
            assert error_of(other, rounds, separation, most) > least * (1 - 1e-5)


def test_more_buffers_are_taken_only_where_they_pay() -> None:
    few = best_strategy(2000, 342, 6)
    many = best_strategy(2000, 342, 6, 5)
    assert (few.buffers, many.buffers) == (2, 5)
    assert error_of(few, 2000, 342, 6) < error_of(many, 2000, 342, 6) * 1.006


def test_one_round_needs_one_buffer_and_no_correlation_matters() -> None:
    strategy = best_strategy(1, 1, 1)
    assert strategy.buffers == 1
    assert error_of(strategy, 1, 1, 1) == pytest.approx(1.0)


def test_the_same_run_gets_the_same_strategy_again() -> None:
    best_strategy.cache_clear()
    first = best_strategy(200, 10, 5)
    best_strategy.cache_clear()
    assert best_strategy(200, 10, 5) == first


def test_it_has_less_noise_than_sixteen_bands_or_independent_noise() -> None:
    rounds, separation, most = 1024, 1024, 1
    bands = np.zeros(rounds)
    bands[:16] = banded_coefficients(16)
    banded = relative_error(bands, inverse_column(bands[:16], rounds), separation, most)
    assert banded == pytest.approx(0.319, abs=0.001)
    assert error_of(best_strategy(rounds, separation, most), rounds, separation, most) < banded / 2
