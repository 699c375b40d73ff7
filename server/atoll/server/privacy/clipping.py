"""A clip norm that follows a quantile of the updates' norms; clipping itself is ``aggregation.grid``.

This is Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Section 2:
after each round ``C <- C * exp(-eta (b - gamma))``, where b is the noised share of updates whose norm was at most C and
gamma the target quantile. Releasing the share costs budget: Section 3.1 of the paper splits the noise (``deriving``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from atoll.server.privacy.noise import DiscreteGaussian, sigma_for

_COUNT_UNIT = 2.0**-20
"""Grid of the noised count."""
LEAST_COUNT_NOISE = 2.0**-5
"""Minimum standard deviation, in participants: 2**16 grid units, as for the sum's noise (``scale``)."""
_LARGEST_STEP = 20.0
"""Largest exponent of one step: noise alone cannot bring the norm to 0 or infinity."""


@dataclass(frozen=True, slots=True)
class AdaptiveClip:
    """The rule by which the clip norm moves from round to round.

    Attributes:
        quantile: gamma: the share of updates that should not be clipped, in (0, 1).
        learning_rate: eta: the change of the norm's logarithm for a share that is off by 1.
        expected: cohort size that shares refer to, regardless of how many reported; at least 1.
        count_noise: sigma_b: standard deviation of the noise on the number of updates within the norm, where each
            counts plus or minus 1/2; at least ``LEAST_COUNT_NOISE``.

    Raises:
        ValueError: for a value outside these bounds.
    """

    quantile: float
    learning_rate: float
    expected: int
    count_noise: float

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile {self.quantile}: must be above 0 and below 1")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate {self.learning_rate}: must be above 0 and finite")
        if self.expected < 1:
            raise ValueError(f"expected {self.expected}: a share is of at least 1 update")
        if not LEAST_COUNT_NOISE <= self.count_noise <= 2.0**20:
            raise ValueError(f"count_noise {self.count_noise}: must be 2**-5 to 2**20 participants")

    def noised_count(self, within: int, reported: int, key: bytes) -> float:
        """The noised count of updates within the norm: ``2 within - reported``, with noise.

        Each update counts 1 or -1, so one participant moves it by 1. The noise is a discrete Gaussian of
        ``2 count_noise`` over the multiples of 2**-20. It is drawn from ``key``, which must be used for this purpose
        and round only.

        Raises:
            ValueError: if ``within`` is negative or exceeds ``reported``.
        """
        if not 0 <= within <= reported:
            raise ValueError(f"{within} of {reported} updates within the norm")
        noise = np.empty(1, np.int64)
        DiscreteGaussian(sigma_for(2 * self.count_noise / _COUNT_UNIT)).draw(noise, key)
        return 2 * within - reported + int(noise[0]) * _COUNT_UNIT

    def share(self, noised_count: float) -> float:
        """The noised share of updates within the norm; noise may bring it below 0 or above 1."""
        return 0.5 + noised_count / (2 * self.expected)

    def next_clip(self, clip: float, noised_count: float) -> float:
        """The next round's norm: it falls if more updates than the quantile were within it.

        Raises:
            OverflowError: if the norm leaves the range of float64.
        """
        step = self.learning_rate * (self.share(noised_count) - self.quantile)
        moved = clip * math.exp(-max(-_LARGEST_STEP, min(_LARGEST_STEP, step)))
        if not 0 < moved < math.inf:
            raise OverflowError(f"the clip norm went from {clip:g} to {moved:g}: lower the learning rate")
        return moved
