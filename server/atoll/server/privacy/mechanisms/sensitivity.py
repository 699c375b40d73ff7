"""How much one participant can change a run's releases: the squared sensitivity of its first 1, 2, ... rounds.

The unit is the largest contribution to one round's sum. A mechanism releases ``C x + z``. Here x holds the sums of the
rounds, C is the mechanism's matrix, and z is independent noise with one standard deviation.

Let a participant be in the rounds ``p_1 < p_2 < ...``. Their number is at most ``max_participations``. A participant of
round t is in no other round before ``t + min_separation``; a separation of 1 is no constraint. Each contribution has a
norm of at most 1. Then the participant changes C x by at most the square root of the ``sum of <C_i, C_j>`` over all
pairs of its rounds, and the sensitivity is the largest such value over all allowed choices of rounds (Choquette-Choo et
al. 2023, "Multi-Epoch Matrix Factorization Mechanisms", Section 3: if C has no negative entries, equal contributions
attain the bound).

A run with noise multiplier z costs as much as one Gaussian release with noise multiplier ``z / sensitivity``. This
holds even if contributions depend on earlier releases (Denisov et al. 2022, Theorem 2.1). Release t adds the difference
of the squares of t and t - 1 rounds to the cost.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.mechanisms import _loops
from atoll.server.privacy.mechanisms.strategy import Strategy

COEFFICIENT_BITS = _loops.COEFFICIENT_BITS
"""Banded coefficients are multiples of 2**-20, so that their sums with integer noise are exact."""
MAX_WORK = 10**8
"""Maximum product of rounds and participations of a tree; up to it, accounting takes at most half a minute."""

Squares = npt.NDArray[np.float64]


def gaussian_squares(rounds: int, min_separation: int, max_participations: int) -> Squares:
    """Squared sensitivity of the first 1 to ``rounds`` rounds with independent noise: C = I."""
    _check(rounds, min_separation, max_participations)
    return np.minimum(np.ceil(np.arange(1, rounds + 1) / min_separation), max_participations)


def tree_squares(rounds: int, min_separation: int, max_participations: int) -> Squares:
    """Squared sensitivity of the first 1 to ``rounds`` rounds of the tree, as integers; an upper bound.

    Node t of the binary tree (Kairouz et al. 2021, Section 3), for t = 1 to ``rounds``, is the sum of the last
    ``t & -t`` rounds up to t. Prefix sums consist of these nodes only, so no other node gets noise. A participant in m
    rounds of a node changes it by at most m. So the squared sensitivity is the sum of m squared over all nodes, for the
    worst choice of rounds.

    Dynamic programming over the tree finds that choice: nodes of the same size have the same result, and each node and
    prefix sum divides its participations among its parts in the worst way. The separation allows
    ``ceil(n / min_separation)`` participations in n rounds. Only this number is limited for each part, so the result is
    an upper bound; it is exact if ``min_separation`` is a power of two.

    Raises:
        InvalidRequestError: if the rounds and participations would take minutes to account for.
    """
    _check(rounds, min_separation, max_participations)
    _check_work(rounds, _participations(rounds, min_separation, max_participations))
    whole = _whole_stretches(rounds, min_separation, max_participations)
    prefixes: dict[int, Squares] = {0: np.zeros(1)}
    squares = np.empty(rounds)
    for last in range(1, rounds + 1):
        level = (last & -last).bit_length() - 1
        limit = _participations(last, min_separation, max_participations)
        most = _best_split(prefixes[last & (last - 1)], whole[level], limit)
        prefixes = {0: prefixes[0], **{end: one for end, one in prefixes.items() if end & last == end}, last: most}
        squares[last - 1] = most[-1]
    return squares


def banded_squares(bands: int, rounds: int, min_separation: int, max_participations: int) -> Squares:
    """Squared sensitivity of the first 1 to ``rounds`` rounds of the banded matrix; exact.

    The columns of one participant's rounds do not overlap, so their squared norms add up (Choquette-Choo et al. 2023,
    "(Amplified) Banded Matrix Factorization", Section 3). The last columns are truncated and have smaller norms. So the
    worst case is a participant in the earliest possible rounds, ``min_separation`` apart.

    Raises:
        ValueError: for more bands than ``min_separation``.
    """
    _check(rounds, min_separation, max_participations)
    if bands > min_separation:
        raise ValueError(f"{bands} bands: at most min_separation, {min_separation}, or one participant's overlap")
    norms = np.cumsum(np.square(np.array(banded_coefficients(bands), np.float64)))
    squares = np.zeros(rounds)
    for number in range(_participations(rounds, min_separation, max_participations)):
        first = number * min_separation
        seen = np.minimum(np.arange(1, rounds - first + 1), bands)
        squares[first:] += norms[seen - 1]
    return squares


def toeplitz_squares(first: Squares, min_separation: int, max_participations: int) -> Squares:
    """Squared sensitivity of the first 1 to ``first.size`` rounds of a lower-triangular Toeplitz matrix.

    The first column must be non-negative and non-increasing. Then the worst case is a participant in the first round
    and in every ``min_separation``-th round after it, as often as is allowed (Kalinin and Lampert 2024, "Banded Square
    Root Matrix Factorization ...", Theorem 2). Columns may overlap.
    """
    _check(first.size, min_separation, max_participations)
    moved = np.zeros(-(-first.size // min_separation) * min_separation)
    moved[: first.size] = first
    columns = np.cumsum(moved.reshape(-1, min_separation), axis=0)  # of participations 0 to s // min_separation
    if max_participations < len(columns):
        columns[max_participations:] -= columns[:-max_participations].copy()
    squares: Squares = np.cumsum(np.square(columns.reshape(-1)[: first.size]))
    return squares


@lru_cache(maxsize=16)
def blt_squares(strategy: Strategy, rounds: int, min_separation: int, max_participations: int) -> Squares:
    """Squared sensitivity of the first 1 to ``rounds`` rounds of a BLT; exact."""
    return toeplitz_squares(strategy.coefficients(rounds), min_separation, max_participations)


@lru_cache(maxsize=16)
def blt_allowance(dimension: int, strategy: Strategy, rounds: int) -> float:
    """The norm that rounding adds to a participant's contribution, in grid units; see also ``banded_allowance``.

    Two runs with and without the contribution have the same output only if their ``z_t`` differ by the contribution
    times ``c_j``. In each later round, rounding adds to this at most 1 per element for integers, and
    ``strategy.rounding`` for buffers.
    """
    norms = np.cumsum(np.square(strategy.coefficients(rounds)))
    return (1 + strategy.rounding) * math.sqrt(dimension * float(np.max(np.arange(rounds) / norms)))


@lru_cache(maxsize=64)
def banded_coefficients(bands: int) -> tuple[float, ...]:
    """The first column of the banded matrix C: ``bands`` coefficients 1, 1/2, 3/8, ...

    They are those of the square root of the matrix of prefix sums: ``f(0) = 1``, ``f(k) = f(k - 1) (2k - 1) / (2k)``
    (Fichtenberger, Henzinger, Upadhyay 2023, "Constant matters", Section 3). Each is rounded to a multiple of 2**-20.
    The sensitivity is computed from the rounded coefficients.

    Raises:
        ValueError: for no band.
    """
    if bands < 1:
        raise ValueError(f"{bands} bands: at least 1, which is independent noise")
    scale = float(1 << COEFFICIENT_BITS)
    exact, coefficients = 1.0, [1.0]
    for k in range(1, bands):
        exact *= (2 * k - 1) / (2 * k)
        coefficients.append(round(exact * scale) / scale)
    return tuple(coefficients)


def inverse_column(first: Squares, count: int) -> Squares:
    """The first column of the inverse of a lower-triangular Toeplitz matrix, ``count`` long.

    Args:
        first: the non-zero part of its first column; starts with 1.
        count: length of the result.
    """
    later = first[:0:-1]
    found = np.zeros(count)
    found[0] = 1.0
    for index in range(1, count):
        width = min(index, later.size)
        found[index] = -np.dot(later[later.size - width :], found[index - width : index])
    return found


def banded_allowance(dimension: int, bands: int) -> float:
    """The norm that rounding earlier noise to integers adds to a participant's contribution, in grid units.

    Two runs with and without the contribution have the same output only if their ``z_t`` differ by the contribution
    times ``c_j``. Rounding adds at most 1 per element in each of up to ``bands - 1`` later rounds, which is a norm of
    ``sqrt(dimension * m)`` after m of them. The result is the smallest allowance that covers this after every round,
    because the contribution's norm is multiplied by the norm of the first m coefficients.
    """
    norms = np.sqrt(np.cumsum(np.square(np.array(banded_coefficients(bands), np.float64))))
    return math.sqrt(dimension) * float(np.max(np.sqrt(np.arange(bands)) / norms))


def _check(rounds: int, min_separation: int, max_participations: int) -> None:
    if min(rounds, min_separation, max_participations) < 1:
        raise ValueError(
            f"{rounds} rounds, min_separation {min_separation}, max_participations {max_participations}: each is at "
            "least 1"
        )


def _check_work(rounds: int, participations: int) -> None:
    if rounds * participations > MAX_WORK:
        raise InvalidRequestError(
            "privacy.max_participations",
            f"the tree's account of {rounds} rounds with up to {participations} participations of one participant has "
            f"{rounds * participations} parts, at most {MAX_WORK} are worked out",
            f"set privacy.max_participations to {MAX_WORK // rounds} or less, or a larger privacy.min_separation",
        )


def _participations(rounds: int, min_separation: int, max_participations: int) -> int:
    """Maximum number of rounds that one participant may be in."""
    return min(max_participations, -(-rounds // min_separation))


def _whole_stretches(rounds: int, min_separation: int, max_participations: int) -> list[Squares]:
    """The largest squared sensitivity of nodes over 1, 2, 4, ... rounds, by the number of participations in the node.

    The left half of a node is a node too. The right half is not: a prefix sum that needs it uses the whole node.
    """
    inner = np.zeros(2)
    found = [inner + np.square(np.arange(2.0))]
    for level in range(1, rounds.bit_length()):
        inner = _best_split(found[-1], inner, _participations(1 << level, min_separation, max_participations))
        found.append(inner + np.square(np.arange(float(inner.size))))
    return found


def _best_split(one: Squares, other: Squares, limit: int) -> Squares:
    """The maximum sum of two parts for 0 to ``limit`` participations, over all ways to divide these between them."""
    best = np.full(limit + 1, -np.inf)
    short, long = sorted((one, other), key=len)
    for count, value in enumerate(short[: limit + 1]):
        part = long[: limit + 1 - count] + value
        np.maximum(best[count : count + part.size], part, out=best[count : count + part.size])
    return np.maximum.accumulate(best)
