"""Tests whether releases have as much noise as the contract says, by the variance of released minus known sums.

Canaries show what a whole run leaks, with a margin within which half of the noise can be missing. If the sums are
known, so is the noise. After whitening (``whitened``), the squares of n values over their claimed deviation add up to a
chi-square variable with n degrees of freedom. A sum that is too small refutes the claim: with 200,000 values a noise of
0.985 of the claim is detected, with 400 values a noise of 0.75. Three tests share the probability of a false alarm:
over all values; over each round, for noise missing in one release; and over differences of neighbouring rounds, for
noise that is drawn twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atoll.server.privacy.contract import Contract
from atoll.server.privacy.mechanisms.sensitivity import banded_coefficients
from atoll.server.privacy_audit.evidence import tree_covariance

Doubles = npt.NDArray[np.float64]

FALSE_ALARM = 1e-6
"""Maximum probability of refuting correct noise."""


@dataclass(frozen=True, slots=True)
class NoiseFound:
    """The measured noise.

    Attributes:
        values: number of noise values, over all rounds.
        share: measured standard deviation divided by the contract's.
        share_at_most: upper bound on the share, wrong with probability ``FALSE_ALARM``.
        missing: where noise is too small: "all rounds", "round 3" or "differences of rounds"; empty if nowhere.
    """

    values: int
    share: float
    share_at_most: float
    missing: tuple[str, ...]

    @property
    def refuted(self) -> bool:
        """Whether there is less noise than claimed; wrong with probability ``FALSE_ALARM``."""
        return bool(self.missing)


def noise_found(contract: Contract, noise: Doubles) -> NoiseFound:
    """Compare noise with its claim.

    Args:
        contract: contract of the releases, which are the first ones of the run.
        noise: released minus known sums, divided by clip norm and largest weight, (rounds, elements).
    """
    independent = whitened(contract, noise) / contract.noise_multiplier
    rounds = len(independent)
    looks = {"all rounds": independent}
    if rounds > 1:
        pairs = rounds // 2 * 2
        looks |= {f"round {number + 1}": one for number, one in enumerate(independent)}
        looks["differences of rounds"] = (independent[1:pairs:2] - independent[0:pairs:2]) / math.sqrt(2)
    each = FALSE_ALARM / len(looks)
    found = {name: _largest_share(values, each) for name, values in looks.items()}
    missing = tuple(name for name, share in found.items() if share < 1)
    share = float(np.sqrt(np.mean(np.square(independent))))
    return NoiseFound(independent.size, share, found["all rounds"], missing)


def whitened(contract: Contract, noise: Doubles) -> Doubles:
    """The independent noise, of ``noise_multiplier``, behind the first rounds' noise, (rounds, elements)."""
    rounds = len(noise)
    match contract.mechanism:
        case "gaussian":
            return noise
        case "banded":
            return _filtered(noise, np.array(banded_coefficients(contract.bands)))
        case "blt":
            if contract.strategy is None:
                raise ValueError('mechanism "blt" has no strategy')
            return _filtered(noise, contract.strategy.coefficients(rounds))
        case "tree":
            return np.asarray(np.linalg.solve(np.linalg.cholesky(tree_covariance(rounds)), noise), np.float64)


def _filtered(noise: Doubles, coefficients: Doubles) -> Doubles:
    """The product with the lower triangular Toeplitz matrix that has this first column."""
    found = np.zeros_like(noise)
    for offset, coefficient in enumerate(coefficients[: len(noise)]):
        found[offset:] += coefficient * noise[: len(noise) - offset]
    return found


def _largest_share(values: Doubles, chance: float) -> float:
    """Upper bound on the share of noise, with a small error probability."""
    from scipy.stats import chi2  # noqa: PLC0415  # half a second that only audits need

    return math.sqrt(float(np.sum(np.square(values))) / float(chi2.ppf(chance, values.size)))
