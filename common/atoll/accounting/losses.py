"""The privacy loss of one Gaussian release with Poisson sampling, as a discrete distribution that dominates it.

One sample is in the release or not; the output is x ~ P = (1 - q) N(0, s^2) + q N(1, s^2) with it and x ~ Q = N(0, s^2)
without. The loss log(P / Q) (x drawn from P) or log(Q / P) (x drawn from Q) is moved to multiples of a step: the mass
between two multiples is split between them so that P and Q keep their masses there ("connect the dots", Doroshenko et
al. 2022). This is the least discrete pair that dominates the continuous one, and domination survives composition (Zhu,
Dong and Wang 2022, theorem 10). A bound on float64's rounding error is added to the masses and moved upwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import cast

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_UNIT = 2.0**-53
_REACH = 9.0
_NODES = 2001


@dataclass(frozen=True, slots=True)
class Atoms:
    """A privacy loss on a grid.

    Attributes:
        step: of the grid.
        first: the lowest loss, in steps.
        masses: of the losses ``first``, ``first + 1``, ... steps; their sum is 1 - ``infinite`` or a little more.
        infinite: probability of a loss above all of them.
    """

    step: float
    first: int
    masses: Doubles
    infinite: float

    @property
    def losses(self) -> Doubles:
        """As long as ``masses``."""
        return np.arange(self.first, self.first + self.masses.size) * np.float64(self.step)


def loss_at(noise: float, rate: float, x: float) -> float:
    """log(P / Q) at an output."""
    out = math.log1p(-rate) if rate < 1 else -math.inf
    return float(np.logaddexp(out, math.log(rate) + (2 * x - 1) / (2 * noise**2)))


def highest_loss(noise: float, rate: float, outside: float) -> float:
    """The loss that is exceeded with probability ``outside`` at most."""
    return loss_at(noise, rate, 1 + noise * tail_quantile(outside))


@lru_cache(maxsize=1024)
def mean_and_variance(noise: float, rate: float) -> tuple[float, float]:
    """Approximate moments of log(P / Q) under P, used to choose the step; no bound relies on them."""
    x = np.linspace(-_REACH * noise, 1 + _REACH * noise, _NODES)
    at_0, at_1 = (np.exp(-((x - mean) ** 2) / (2 * noise**2)) for mean in (0.0, 1.0))
    weights = (1 - rate) * at_0 / at_0.sum() + rate * at_1 / at_1.sum()
    out = math.log1p(-rate) if rate < 1 else -math.inf
    losses = np.logaddexp(out, math.log(rate) + (2 * x - 1) / (2 * noise**2))
    mean = float(np.sum(weights * losses))
    return mean, float(np.sum(weights * (losses - mean) ** 2))


def atoms(noise: float, rate: float, step: float, outside: float, *, present: bool) -> Atoms:
    """A dominating loss of one release.

    Args:
        noise: s, relative to how far one sample moves the sum; above 0.
        rate: q, in (0, 1].
        step: of the grid.
        outside: probability with which losses may be treated as infinite.
        present: True for the loss log(P / Q) with the sample; False for log(Q / P) without it.
    """
    reach = noise * tail_quantile(outside)
    low, high = loss_at(noise, rate, -reach), loss_at(noise, rate, 1 + reach if present else reach)
    first, last = math.floor(low / step), math.ceil(high / step)
    edges = step * np.arange(first, last + 1)
    with np.errstate(divide="ignore"):  # no output has a loss below log(1 - q)
        odds = np.expm1(edges) / rate + 1  # of N(1, s^2) against N(0, s^2), where the loss is that of an edge
        x = noise**2 * np.log(np.maximum(odds, 0.0)) + 0.5
    out, out_error = _between(x / noise)
    into, into_error = _between((x - 1) / noise)
    # A cell from loss l to l + step with masses P and Q assigns P - exp(l) Q to its upper end. Written as below, the
    # formula loses no digits for small q.
    if present:
        masses = (1 - rate) * out + rate * into
        errors = (1 - rate) * out_error + rate * into_error
        excess, share = into - odds[:-1] * out, rate
        doubt = into_error + np.abs(odds[:-1]) * out_error
        below = (1 - rate) * cdf(x[0] / noise) + rate * cdf((x[0] - 1) / noise)
        infinite = (1 - rate) * cdf(-x[-1] / noise) + rate * cdf((1 - x[-1]) / noise)
    else:
        masses, errors, excess = out, out_error, odds[1:] * out - into
        share = rate * np.exp(-edges[1:])
        doubt = into_error + np.abs(odds[1:]) * out_error
        below, infinite, first = cdf(-x[-1] / noise), cdf(x[0] / noise), -last
    upper = share * (excess + doubt) / -math.expm1(-step)
    if not present:
        masses, errors, upper = masses[::-1], errors[::-1], upper[::-1]
    return Atoms(step, first, _split(masses + errors, upper, float(below)), float(infinite))


def _split(masses: Doubles, upper: Doubles, below: float) -> Doubles:
    """Masses at the cells' ends: ``upper`` is for each cell's higher end; ``below`` is the mass of all lower losses."""
    upper = np.clip(upper, 0.0, masses)
    found = np.zeros(masses.size + 1)
    found[1:] = upper
    found[:-1] += masses - upper
    found[0] += below
    return found


def _between(edges: Doubles) -> tuple[Doubles, Doubles]:
    """Masses of a standard normal variable between increasing edges, and a bound on each one's error.

    ``cdf`` at a is off by at most (8 + 4 a^2) units in the last place, as its exponential is.
    """
    below, above = cdf(edges), cdf(-edges)
    right = edges[:-1] > 0
    masses = np.where(right, above[:-1] - above[1:], below[1:] - below[:-1])
    largest, at = np.where(right, above[:-1], below[1:]), np.where(right, edges[:-1], edges[1:])
    with np.errstate(invalid="ignore"):
        errors = np.where(largest > 0, 2 * _UNIT * (8 + 4 * at**2) * largest, 0.0)
    return np.maximum(masses, 0.0), errors


def cdf(x: Doubles) -> Doubles:
    """The standard normal distribution function, with an error of at most (8 + 4 x^2) units in the last place."""
    return np.asarray(_special().ndtr(x), np.float64)


def tail_quantile(chance: float) -> float:
    """The value that a standard normal variable exceeds with this probability."""
    return -float(_special().ndtri(chance))


@lru_cache(maxsize=1)
def _special() -> ModuleType:
    import scipy.special  # noqa: PLC0415  # not installed with the base client

    return cast("ModuleType", scipy.special)
