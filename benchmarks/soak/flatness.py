"""Whether a series stays flat: a fitted slope against a stated tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

WARM_UP = 0.25
"""Share of the samples at the beginning that is ignored: caches fill, modules load, the first runs retire."""
LEAST_SAMPLES = 8
_SPANS = 30
_MOST_PAIRS = 400
"""Maximum number of samples for the fit; of longer series every n-th is used."""

_Series: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tolerance:
    """The allowed growth of a series over the judged time: a share of its median, or an amount if that is more.

    Attributes:
        floors: use the lowest value of each thirtieth of the samples: the level between pieces of work, independent of
            how many of them coincide. A leak raises it.
    """

    share: float
    amount: float
    floors: bool = False


@dataclass(frozen=True)
class Verdict:
    """A series as judged.

    Attributes:
        median: of the judged samples.
        growth: fitted slope times the judged time, in the unit of the series; negative if it shrinks.
        allowed: maximum growth.
    """

    median: float
    growth: float
    allowed: float

    @property
    def flat(self) -> bool:
        """Whether it grows no more than allowed; shrinking is not a leak."""
        return self.growth <= self.allowed


def judge(at_s: Sequence[float], values: Sequence[float], tolerance: Tolerance) -> Verdict:
    """Fit a line to a series after its warm-up.

    The slope is the median over all pairs of samples (Theil 1950, Sen 1968). Up to 29 % of outliers do not move it, so
    a spike neither looks like a leak nor hides one.

    Args:
        at_s: seconds of each sample, increasing.
        values: one for each.
        tolerance: allowed growth.

    Raises:
        ValueError: if too few samples are left after the warm-up.
    """
    times, found = np.asarray(at_s, np.float64), np.asarray(values, np.float64)
    if tolerance.floors:
        times, found = _floors(times, found)
    warm = round(WARM_UP * times.size)
    times, found = times[warm:], found[warm:]
    if times.size < LEAST_SAMPLES:
        raise ValueError(f"{times.size} samples after the warm-up, {LEAST_SAMPLES} are needed: soak for longer")
    growth = _theil_sen(times, found) * float(times[-1] - times[0])
    median = float(np.median(found))
    return Verdict(median, growth, max(tolerance.share * abs(median), tolerance.amount))


def _floors(times: _Series, values: _Series) -> tuple[_Series, _Series]:
    spans = np.array_split(np.arange(times.size), min(_SPANS, times.size))
    lowest = [span[np.argmin(values[span])] for span in spans]
    return times[lowest], values[lowest]


def _theil_sen(times: _Series, values: _Series) -> float:
    step = -(-times.size // _MOST_PAIRS)
    times, values = times[::step], values[::step]
    first, second = np.triu_indices(times.size, k=1)
    return float(np.median((values[second] - values[first]) / (times[second] - times[first])))
