"""Squared sensitivity of a run's first 1, 2, ... rounds to one participant, in units of one round's.

A mechanism releases ``C x + z``: x the rounds' sums, C its matrix, z independent noise of one standard deviation. Take
one participant in rounds ``p_1 < p_2 < ...``, at least ``min_separation`` apart and at most ``max_participations`` in
number, each with a contribution of norm at most 1. Then C x moves by at most the square root of the largest ``sum of
<C_i, C_j>`` over pairs of its rounds (Choquette-Choo et al. 2023, "Multi-Epoch Matrix Factorization Mechanisms",
Section 3: for matrices without negative entries equal contributions attain the bound). With noise multiplier z the run
costs as much as one Gaussian release with noise multiplier ``z / sensitivity``, even if later rounds are chosen
adaptively (Denisov et al. 2022, Theorem 2.1).

``min_separation`` b means that a participant of round t is in no other round before t + b; 1 is no constraint. Each
release adds the difference of neighbouring squares to the cost.
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
"""Maximum of rounds times participations of a tree; its account takes at most half a minute."""

Squares = npt.NDArray[np.float64]


def gaussian_squares(rounds: int, min_separation: int, max_participations: int) -> Squares:
    """Squared sensitivity of the first 1 to ``rounds`` rounds with independent noise: C = I."""
    _check(rounds, min_separation, max_participations)
    return np.minimum(np.ceil(np.arange(1, rounds + 1) / min_separation), max_participations)


def tree_squares(rounds: int, min_separation: int, max_participations: int) -> Squares:
    """Squared sensitivity of the first 1 to ``rounds`` rounds of the tree, as integers; an upper bound.

    Node t of the binary tree (Kairouz et al. 2021, Section 3), for t = 1 to ``rounds``, is the sum of the last
    ``t & -t`` rounds up to t: prefix sums consist only of these nodes, so others get no noise. A participant in m
    rounds of a node moves it by m. The result is the largest sum over nodes of squared numbers of participations, by
    dynamic programming over the tree: stretches of equal size are alike, and their participations are divided in the
    worst way. The separation limits participations to ``ceil(n / min_separation)`` in n rounds, in every stretch of the
    tree. If ``min_separation`` is a power of two, the result is the exact maximum.

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

    Columns of one participant's rounds do not overlap, so their squared norms add up (Choquette-Choo et al. 2023,
    "(Amplified) Banded Matrix Factorization", Section 3). Columns at the end are truncated, so the earliest rounds,
    ``min_separation`` apart, are the worst case.

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

    If the first column is non-negative and non-increasing, the worst rounds are the first one and those that follow it
    at intervals of ``min_separation`` (Kalinin and Lampert 2024, "Banded Square Root Matrix Factorization ...", Theorem
    2). Columns may overlap.
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

    For equal outputs the centres of ``z_t`` differ by the contribution times ``c_j``, plus or minus 1 for rounding to
    integers and ``strategy.rounding`` for buffers, per element in each later round.
    """
    norms = np.cumsum(np.square(strategy.coefficients(rounds)))
    return (1 + strategy.rounding) * math.sqrt(dimension * float(np.max(np.arange(rounds) / norms)))


@lru_cache(maxsize=64)
def banded_coefficients(bands: int) -> tuple[float, ...]:
    """The first column of C: 1, 1/2, 3/8, ..., of the square root of the matrix of prefix sums, cut to ``bands``.

    ``f(0) = 1``, ``f(k) = f(k - 1) (2k - 1) / (2k)`` (Fichtenberger, Henzinger, Upadhyay 2023, "Constant matters",
    Section 3), each rounded to a multiple of 2**-20; the sensitivity is computed from the rounded coefficients.

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
    """The increase by earlier noise, rounded to integers, of the norm of a participant's contribution, in grid units.

    For equal outputs the centres of ``z_t`` differ by the contribution times ``c_j``, plus or minus 1 per element in
    each of up to ``bands - 1`` later rounds: by ``sqrt(dimension * m)`` after m of them. A contribution that is larger
    by this amount covers that in every prefix, since it is multiplied by the column's norm so far.
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

    A stretch's left half is also a node. Its right half is not, since prefix sums that need it use the whole stretch.
    """
    inner = np.zeros(2)
    found = [inner + np.square(np.arange(2.0))]
    for level in range(1, rounds.bit_length()):
        inner = _best_split(found[-1], inner, _participations(1 << level, min_separation, max_participations))
        found.append(inner + np.square(np.arange(float(inner.size))))
    return found


def _best_split(one: Squares, other: Squares, limit: int) -> Squares:
    """The maximum total of two stretches for 0 to ``limit`` participations, over all ways to divide these."""
    best = np.full(limit + 1, -np.inf)
    short, long = sorted((one, other), key=len)
    for count, value in enumerate(short[: limit + 1]):
        part = long[: limit + 1 - count] + value
        np.maximum(best[count : count + part.size], part, out=best[count : count + part.size])
    return np.maximum.accumulate(best)
