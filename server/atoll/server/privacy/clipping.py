"""A clip norm that follows a quantile of the updates' norms; clipping itself is ``aggregation.grid``.

It is that of Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Section 2:
after each round ``C <- C * exp(-eta (b - gamma))``, b being the noised share of updates whose norm was at most C, gamma
the quantile wanted. The share spends budget: Section 3.1 of the paper splits the noise (``deriving``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from atoll.server.privacy.noise import DiscreteGaussian

_COUNT_UNIT = 2.0**-20
"""Grid of the noised count."""
LEAST_COUNT_NOISE = 2.0**-5
"""In participants: 2**16 units of that grid, where noise costs what continuous noise is charged (``scale``)."""
_LARGEST_STEP = 20.0
"""Of the exponent in one update: noise alone cannot bring the norm to 0 or infinity."""


@dataclass(frozen=True, slots=True)
class AdaptiveClip:
    """How the clip norm moves from round to round.

    Attributes:
        quantile: gamma: the share of updates that should not be clipped, in (0, 1).
        learning_rate: eta: by how much the norm's logarithm moves for a share that is off by 1.
        expected: the cohort's size that shares are of, however many reported; at least 1.
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
        """What may be known of how many updates were within the norm: ``2 within - reported`` and noise.

        Each update counts 1 or -1, so one participant moves it by 1; the noise is a discrete Gaussian of
        ``2 count_noise`` over the multiples of 2**-20, drawn from ``key``: of this purpose and round only.

        Raises:
            ValueError: if more were within than reported, or fewer than none.
        """
        if not 0 <= within <= reported:
            raise ValueError(f"{within} of {reported} updates within the norm")
        noise = np.empty(1, np.int64)
        DiscreteGaussian(2 * self.count_noise / _COUNT_UNIT).draw(noise, key)
        return 2 * within - reported + int(noise[0]) * _COUNT_UNIT

    def share(self, noised_count: float) -> float:
        """The noised share of updates within the norm; noise may bring it below 0 or above 1."""
        return 0.5 + noised_count / (2 * self.expected)

    def next_clip(self, clip: float, noised_count: float) -> float:
        """The next round's norm: it falls if more than the quantile were within.

        Raises:
            OverflowError: if it leaves what a float64 can be.
        """
        step = self.learning_rate * (self.share(noised_count) - self.quantile)
        moved = clip * math.exp(-max(-_LARGEST_STEP, min(_LARGEST_STEP, step)))
        if not 0 < moved < math.inf:
            raise OverflowError(f"the clip norm went from {clip:g} to {moved:g}: lower the learning rate")
        return moved
