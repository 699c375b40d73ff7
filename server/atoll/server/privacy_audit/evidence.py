"""The evidence of each release about each canary, for an attacker who knows everything but the coins and the noise.

Scores are logarithms of likelihood ratios, "in" against "out": the sign is the best guess, and the magnitude its
certainty. ``y`` is the component of a round's noised sum in a canary's direction, in clip norms: 1 or 0, plus noise of
z.

- Fresh noise, drawn at random with rate q: the attacker does not know who was drawn. Each round adds
  ``log(1 - q + q exp((y - 1/2) / z^2))``.
- No random draw: the attacker knows the rounds S of the canaries, which are the worst case under the participation
  bounds. The noise of the rounds has the covariance z^2 V, with the mechanism's V, and the score is ``e_S^T V^-1 (y -
  e_S / 2) / z^2``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from atoll.server.privacy.contract import Contract
from atoll.server.privacy.events import Sampling
from atoll.server.privacy.mechanisms.sensitivity import banded_coefficients

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """An attack on runs under a contract.

    Attributes:
        contract: the runs' contract.
        unit: assumed norm of a canary in a sum, in clip norms: 1, or more if clipping may be missing.
        noise_share: assumed share of the contract's noise: 1, or less if noise may be missing.
    """

    contract: Contract
    unit: float = 1.0
    noise_share: float = 1.0
    _weights: Doubles = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sampled = self.contract.sampling is not Sampling.NONE
        object.__setattr__(self, "_weights", np.empty(0) if sampled else self._matched_filter())

    @cached_property
    def schedule(self) -> frozenset[int]:
        """The rounds of every canary without a random draw: as early, as often and as close together as allowed."""
        contract = self.contract
        return frozenset(range(0, contract.rounds, contract.min_separation)[: contract.max_participations])

    @property
    def information(self) -> float:
        """The distance between "in" and "out" over all releases without a random draw, in squared deviations."""
        return sum(float(self._weights[version]) for version in self.schedule) / self.noise**2

    @property
    def noise(self) -> float:
        """Standard deviation of a round's noise in a canary's direction, in units."""
        return self.noise_share * self.contract.noise_multiplier / self.unit

    def evidence(self, version: int, found: Doubles) -> Doubles:
        """The scores of the canaries in one round, (canaries,), from its sum's components in clip norms."""
        contract, noise, found = self.contract, self.noise, found / self.unit
        if contract.sampling is Sampling.NONE:
            return float(self._weights[version]) * (found - (version in self.schedule) / 2) / noise**2
        return _log_ratio(found, contract.sample_rate, noise)

    def _matched_filter(self) -> Doubles:
        present = np.zeros(self.contract.rounds)
        present[list(self.schedule)] = 1.0
        match self.contract.mechanism:
            case "gaussian":
                return present
            case "banded":
                return _toeplitz_filter(present, np.array(banded_coefficients(self.contract.bands)))
            case "blt":
                strategy = self.contract.strategy
                if strategy is None:
                    raise ValueError('mechanism "blt" has no strategy')
                return _toeplitz_filter(present, strategy.coefficients(present.size))
            case "tree":
                return np.asarray(np.linalg.solve(tree_covariance(self.contract.rounds), present), np.float64)


def tree_covariance(rounds: int) -> Doubles:
    """Covariance, (rounds, rounds), of the releases' noise from a binary tree with noise of variance 1 in each node.

    The prefix sum of t rounds is made of the nodes of t's binary digits (``mechanisms.sensitivity``); a release is the
    difference of two of them.
    """
    nodes = np.zeros((rounds + 1, rounds + 1))
    for last in range(1, rounds + 1):
        nodes[last] = nodes[last & (last - 1)]
        nodes[last, last] = 1.0
    releases = np.diff(nodes, axis=0)
    covariance: Doubles = releases @ releases.T
    return covariance


def _toeplitz_filter(present: Doubles, first: Doubles) -> Doubles:
    """``C^T C present``, given the non-zero part of C's first column; the noise is ``C^-1 z``."""
    rounds = present.size
    matrix = np.zeros((rounds, rounds))
    for offset, coefficient in enumerate(first[:rounds]):
        matrix += coefficient * np.eye(rounds, k=-offset)
    weights: Doubles = matrix.T @ (matrix @ present)
    return weights


def _log_ratio(found: Doubles, rate: float, noise: float) -> Doubles:
    with np.errstate(divide="ignore"):
        out = np.log1p(-rate)  # -inf at rate 1
    ratio: Doubles = np.logaddexp(out, np.log(rate) + (found - 0.5) / noise**2)
    return ratio
