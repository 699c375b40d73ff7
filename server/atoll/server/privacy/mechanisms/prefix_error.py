"""The noise on prefix sums with a Toeplitz matrix, at a noise multiplier of 1 for the whole run.

The error of a matrix is the root mean square of the noise on the sums of the first 1, 2, ... rounds, times the
sensitivity (McMahan, Xu, Zhang 2024, arXiv:2408.08868, Section 4). ``prefix_error`` sums over all rounds.
``QuickError`` is for searches. It computes the error of a BLT with integrals and geometric series; its time hardly
depends on the number of rounds.
"""

from __future__ import annotations

import math

import numpy as np

from atoll.server.privacy.mechanisms.sensitivity import toeplitz_squares
from atoll.server.privacy.mechanisms.strategy import Doubles, spectrum

_ONE_BY_ONE = 256
"""Number of rounds that are summed one by one; beyond them, a sum equals an integral to within a millionth."""
_NODES = 12
"""Points of Gauss-Legendre quadrature between a round and the one of twice its number."""


def prefix_error(first: Doubles, inverse_first: Doubles, min_separation: int, max_participations: int) -> float:
    """The error of a matrix.

    Args:
        first: first column of C, non-negative and non-increasing.
        inverse_first: first column of ``C**-1``, of the same length.
        min_separation: minimum number of rounds from one participation of a participant to the next.
        max_participations: maximum number of rounds that a participant is in.
    """
    rounds = first.size
    shares = np.arange(rounds, 0, -1) / rounds
    noise = float(np.sum(np.square(np.cumsum(inverse_first)) * shares))
    return math.sqrt(noise * float(toeplitz_squares(first, min_separation, max_participations)[-1]))


def relative_error(first: Doubles, inverse_first: Doubles, min_separation: int, max_participations: int) -> float:
    """The error divided by that of independent noise, C = I."""
    rounds = first.size
    most = min(max_participations, -(-rounds // min_separation))
    return prefix_error(first, inverse_first, min_separation, max_participations) / math.sqrt((rounds + 1) / 2 * most)


class QuickError:
    """The error of BLTs over many rounds, to within 1e-5; arguments as for ``prefix_error``."""

    def __init__(self, rounds: int, min_separation: int, max_participations: int) -> None:
        self._separation = min(min_separation, rounds)
        self._lags, weights = _sum_rule(0, rounds)
        self._weights = weights * (rounds - self._lags) / rounds
        blocks = -(-rounds // self._separation)  # stretches as long as the separation; the last one may be shorter
        self._last = rounds - self._separation * (blocks - 1)
        most = min(max_participations, blocks)
        rules = (_sum_rule(0, min(most, blocks - 1)), _sum_rule(most, blocks - 1))
        numbers = np.concatenate([*(nodes for nodes, _ in rules), [blocks - 1.0]])
        self._block_weights = np.concatenate([weights for _, weights in rules])
        self._present = np.minimum(numbers + 1, most)[:, None]
        self._since = numbers[:, None] + 1 - self._present  # blocks since the last participation

    def of(self, slowness: Doubles, scales: Doubles) -> float:
        """The error of the BLT with decays ``1 - exp(-slowness)``."""
        decays = 1 - np.exp(-slowness)
        return math.sqrt(self._noise(decays, scales) * self._moved(np.log1p(-np.exp(-slowness)), scales))

    def _noise(self, decays: Doubles, scales: Doubles) -> float:
        """Mean square of the noise on prefix sums."""
        eigenvalues, parts = spectrum(decays, scales)
        steps = np.square(parts @ np.sqrt(scales)) / (1 - eigenvalues)
        bases = np.where(self._lags[:, None] <= _ONE_BY_ONE - 1, eigenvalues, np.maximum(eigenvalues, 0.0))
        sums = 1 - (1 - np.power(bases, self._lags[:, None])) @ steps  # a negative eigenvalue decays before that
        return float(np.sum(np.square(sums) * self._weights))

    def _moved(self, logarithms: Doubles, scales: Doubles) -> float:
        """Squared sensitivity, by logarithms of decays: ``toeplitz_squares`` with geometric series for its sums."""
        stretch = logarithms * self._separation
        series = np.exp(self._since * stretch) * np.expm1(self._present * stretch) / np.expm1(stretch)
        begins = self._since == 0
        first = begins[:, 0] + np.sum(scales * (series - begins) * np.exp(-logarithms), axis=1)
        parts = scales * series
        within = _products(logarithms, self._separation - 1)
        whole = np.square(first[:-1]) + np.sum((parts[:-1] @ within) * parts[:-1], axis=1)
        last = first[-1] ** 2 + parts[-1] @ _products(logarithms, self._last - 1) @ parts[-1]
        return float(self._block_weights @ whole + last)


def _products(logarithms: Doubles, count: int) -> Doubles:
    """Sums of the first ``count`` powers of products of two decays, from power 0."""
    pairs = logarithms[:, None] + logarithms
    sums: Doubles = np.expm1(count * pairs) / np.expm1(pairs)
    return sums


def _sum_rule(first: int, stop: int) -> tuple[Doubles, Doubles]:
    """Nodes and weights of a sum over ``first`` to ``stop - 1``: first one by one, then over doubling stretches."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    count = max(0, stop - first)
    near = np.arange(min(count, _ONE_BY_ONE), dtype=np.float64)
    all_nodes, all_weights = [near], [np.ones(near.size)]
    low, high = near.size - 0.5, count - 0.5
    while low < high:
        end = min(2 * low, high)
        all_nodes.append(low + (nodes + 1) / 2 * (end - low))
        all_weights.append(weights / 2 * (end - low))
        low = end
    return first + np.concatenate(all_nodes), np.concatenate(all_weights)
