"""Whether enough members of secret draws report, told by a noised count that each release pays for.

How many reported must not show: the others' number says whether one more was drawn. So a round of a secret draw is
released whoever came, and a federation whose window is too short would pay for noise alone, round after round. The
count of reports with Gaussian noise may be acted upon. Page's cumulative sum ("Continuous Inspection Schemes", 1954)
adds up by how much counts fall short of half the planned cohort; it is bounded below by 0, so that good rounds do not
hide later bad ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.server.privacy.noise import DiscreteGaussian

_UNIT = 2.0**-20
"""Grid of the noised count."""
LEAST_REPORT_NOISE = 2.0**-4
"""In participants: 2**16 units of that grid, where noise costs what continuous noise is charged (``scale``)."""
_LOG_FALSE_ALARM = 14.0
"""Where all report, a round in about e**14 begins a false alarm (Wald's bound for the sum's upward drift)."""


@dataclass(frozen=True, slots=True)
class Attendance:
    """How reports are counted.

    Attributes:
        planned: expected members of a round, all of whom should report.
        noise: standard deviation of the noise on their number; one participant moves the number by 1.
    """

    planned: int
    noise: float

    def noised_count(self, reports: int, key: bytes) -> float:
        """The number of reports with a discrete Gaussian over the multiples of 2**-20, drawn from ``key``."""
        drawn = np.empty(1, np.int64)
        DiscreteGaussian(self.noise / _UNIT).draw(drawn, key)
        return reports + int(drawn[0]) * _UNIT

    def next_shortfall(self, shortfall: float, noised_count: float) -> float:
        """The cumulative sum after one more round."""
        return max(0.0, shortfall + self.planned / 2 - noised_count)

    @property
    def limit(self) -> float:
        """A sum beyond this is no chance: noise and the random size of cohorts have ``noise**2 + planned`` together."""
        return _LOG_FALSE_ALARM * (self.noise**2 + self.planned) / self.planned
