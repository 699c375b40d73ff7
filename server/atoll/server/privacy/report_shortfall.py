"""Detects that too few members of secret draws report, from a noised count whose cost each release includes.

The number of reports must stay secret: to someone who knows the number of the other reports, it shows whether one more
member was drawn. A round with a secret draw is therefore released no matter how many report, and a federation whose
report window is too short would spend its budget on noise alone. A count of reports with Gaussian noise may be acted
upon. Page's cumulative sum ("Continuous Inspection Schemes", 1954) adds up the amounts by which counts fall short of
half the planned cohort. It never falls below 0, so that good rounds do not hide later bad ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.server.privacy.noise import DiscreteGaussian, sigma_for

_UNIT = 2.0**-20
"""Grid of the noised count."""
LEAST_REPORT_NOISE = 2.0**-4
"""Minimum standard deviation, in participants: 2**16 grid units, as for the sum's noise (``scale``)."""
_LOG_FALSE_ALARM = 14.0
"""If all members report, about one round in e**14 begins a false alarm (Wald's bound for the sum's upward drift)."""


@dataclass(frozen=True, slots=True)
class ReportShortfall:
    """The rule by which reports are counted.

    Attributes:
        planned: expected number of members of a round, all of which should report.
        noise: standard deviation of the noise on their number; one participant moves the number by 1.
    """

    planned: int
    noise: float

    def noised_count(self, reports: int, key: bytes) -> float:
        """The number of reports with a discrete Gaussian over the multiples of 2**-20, drawn from ``key``."""
        drawn = np.empty(1, np.int64)
        DiscreteGaussian(sigma_for(self.noise / _UNIT)).draw(drawn, key)
        return reports + int(drawn[0]) * _UNIT

    def next_shortfall(self, shortfall: float, noised_count: float) -> float:
        """The cumulative sum after one more round."""
        return max(0.0, shortfall + self.planned / 2 - noised_count)

    @property
    def limit(self) -> float:
        """The sum above which chance is ruled out: noise and cohort size have variance ``noise**2 + planned``."""
        return _LOG_FALSE_ALARM * (self.noise**2 + self.planned) / self.planned
