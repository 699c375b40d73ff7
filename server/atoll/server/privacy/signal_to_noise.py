"""The noise in a run's releases, compared with the largest signal that clipping allows.

The noise on the mean of a round has, in each of d elements, standard deviation z C / n: z the noise multiplier, C the
clip norm, n the cohort that every sum is divided by. The mean of clipped updates has at most norm C, so at most
C / sqrt(d) in each element, root mean square. Their ratio n / (z sqrt(d)) is the signal-to-noise at best: C cancels,
and so does the largest weight. Whole norms have the same ratio, as the noise's norm is z C sqrt(d) / n.
"""

from __future__ import annotations

import math

import numpy as np

from atoll.server.privacy.contract import Contract
from atoll.server.privacy.mechanisms.sensitivity import banded_coefficients, inverse_column


def noise_of_round(contract: Contract) -> float:
    """Standard deviation of the noise on one round's sum, in clip norms times ``weight_bound``; root mean square.

    Correlated noise is C**-1 z. With the tree, a round's noise consists of the nodes in which its prefix sum and the
    one before it differ: 1 + the trailing zeros of its number, which is 2 on average.
    """
    match contract.mechanism:
        case "gaussian":
            factor = 1.0
        case "tree":
            factor = math.sqrt((2 * contract.rounds - contract.rounds.bit_count()) / contract.rounds)
        case "banded" | "blt":
            factor = float(np.sqrt(np.mean(np.cumsum(np.square(_inverse(contract))))))
    return contract.noise_multiplier * factor


def noise_of_run(contract: Contract) -> float:
    """Standard deviation of the noise on the sum over all rounds; the last model's, at server learning rate 1."""
    rounds = contract.rounds
    match contract.mechanism:
        case "gaussian":
            factor = math.sqrt(rounds)
        case "tree":
            factor = math.sqrt(rounds.bit_count())
        case "banded" | "blt":
            factor = float(np.sqrt(np.sum(np.square(np.cumsum(_inverse(contract))))))
    return contract.noise_multiplier * factor


def signal_to_noise(contract: Contract, cohort: int, elements: int) -> float:
    """Upper bound on the signal-to-noise ratio of one round's mean over ``elements`` elements."""
    return cohort / (noise_of_round(contract) * math.sqrt(elements))


def signal_to_noise_of_run(contract: Contract, cohort: int, elements: int) -> float:
    """Upper bound on the signal-to-noise ratio of the sum of all rounds' means: all rounds point the same way."""
    return contract.rounds * cohort / (noise_of_run(contract) * math.sqrt(elements))


def _inverse(contract: Contract) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The first column of ``C**-1``, one element for each round; with banded noise or BLT."""
    if contract.strategy is not None:
        return contract.strategy.inverse(contract.rounds)
    return inverse_column(np.array(banded_coefficients(contract.bands)), contract.rounds)
