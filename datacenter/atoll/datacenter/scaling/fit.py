"""Fit a scaling law to your own runs: ``L(N, D) = E + A / N^alpha + B / D^beta``.

Hoffmann et al. 2022, section 3.3: minimise the sum over runs of Huber's loss (delta 1e-3) of ``log L`` predicted minus
measured, where ``log L`` predicted is the log-sum-exp of the three terms, from a grid of starts. Besiroglu et al. 2024
found that their L-BFGS stopped too early. Here a trust-region method for least squares (Branch et al. 1999) minimises
the same sum; it finds the minima of L-BFGS with tight tolerances in a tenth of the time. Logarithms of N and D are
relative to their means, so that the parameters are of similar scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from atoll.datacenter.errors import MissingExtraError
from atoll.datacenter.scaling.laws import FLOPS_PER_PARAMETER_AND_TOKEN, ParametricLaw, ScalingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.datacenter.scaling.runs import MeasuredRun

Floats: TypeAlias = "NDArray[np.float64]"

HUBER = 1e-3
LEAST_RUNS, LEAST_VALUES = 6, 3
"""Five constants need more than five runs; a curve is distinguished from a line by three values of N and of D."""
STARTS = 24
"""Number of the grid's best points from which descents start."""
FINISHED = 3
"""Number of the lowest descents that are run to convergence."""
RESAMPLES, MAX_DRAWS = 100, 2000
INTERVAL = 0.8
"""Share of the resampled fits within an interval."""
EXPONENTS = (1e-3, 3.0)
"""Bounds of alpha and beta; a fit that ends on a bound has not determined the exponent."""
_GRID_EXPONENTS = (0.1, 0.3, 0.5, 0.9, 1.5)
_GRID_SHARES = (0.02, 0.1, 0.3, 0.6, 0.9)


@dataclass(frozen=True, slots=True)
class _Effort:
    """Stopping criteria of a descent: evaluations of the residuals, and relative change of sum, point and gradient."""

    evaluations: int
    tolerance: float


_COARSE, _FINE, _RESAMPLED = _Effort(200, 1e-9), _Effort(2000, 1e-13), _Effort(100, 1e-9)


@dataclass(frozen=True, slots=True)
class Interval:
    """Lower and upper end."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted law, and how reliable it is.

    Attributes:
        law: the best fit.
        runs: the runs that it was fitted to.
        error: root mean square of predicted / measured loss - 1.
        resampled: 100 fits to runs drawn with replacement (Efron 1979).
        largest_flops: budget of the largest run, 6 N D.
        warnings: reasons to doubt the constants.
    """

    law: ParametricLaw
    runs: int
    error: float
    resampled: tuple[ParametricLaw, ...]
    largest_flops: float
    warnings: tuple[str, ...]

    def interval(self, of: Callable[[ParametricLaw], float]) -> Interval:
        """Return the interval of a function of the law: 10th to 90th percentile over the resampled fits."""
        low, high = np.quantile([of(law) for law in self.resampled], [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
        return Interval(float(low), float(high))


@dataclass(frozen=True, slots=True)
class _Data:
    """Logarithms; N's and D's are relative to their means."""

    parameters: Floats
    tokens: Floats
    losses: Floats

    def drawn(self, chosen: NDArray[np.int64]) -> _Data:
        return _Data(self.parameters[chosen], self.tokens[chosen], self.losses[chosen])


def fit_law(runs: Sequence[MeasuredRun], *, seed: int = 0) -> Fit:
    """Fit the law to runs that have ``parameters``, ``tokens`` and ``loss``.

    The learning rate of each run should have decayed over exactly its own tokens; otherwise its loss is higher than its
    tokens allow (Hoffmann et al. 2022, section 3).

    Args:
        runs: at least six, with at least three values of N and of D.
        seed: seed of the resampling.

    Raises:
        ScalingError: naming what is missing.
        MissingExtraError: if scipy is not installed.
    """
    parameters, tokens, losses = _checked(runs)
    middle_n, middle_d = float(np.log(parameters).mean()), float(np.log(tokens).mean())
    data = _Data(np.log(parameters) - middle_n, np.log(tokens) - middle_d, np.log(losses))
    coarse = _descend(data, _starts(data), _COARSE)
    best = _descend(data, coarse[:FINISHED], _FINE)[0]
    law = _law(best, middle_n, middle_d, len(runs))
    resampled = [_law(point, middle_n, middle_d, len(runs)) for point in _resampled(data, best, seed)]
    predicted = np.array([law.loss(n, d) for n, d in zip(parameters, tokens, strict=True)])
    return Fit(
        law=law,
        runs=len(runs),
        error=float(np.sqrt(np.mean((predicted / losses - 1) ** 2))),
        resampled=tuple(resampled),
        largest_flops=float(FLOPS_PER_PARAMETER_AND_TOKEN * (parameters * tokens).max()),
        warnings=tuple(_warnings(law, parameters, tokens)),
    )


def _checked(runs: Sequence[MeasuredRun]) -> tuple[Floats, Floats, Floats]:
    for run in runs:
        missing = [name for name in ("parameters", "tokens", "loss") if getattr(run, name) is None]
        if missing:
            raise ScalingError(f"run {run.name}: no {', '.join(missing)}; a fit needs all three")
    if len(runs) < LEAST_RUNS:
        raise ScalingError(f"{len(runs)} runs: the law has five constants, at least {LEAST_RUNS} runs are needed")
    table = np.array([[run.parameters, run.tokens, run.loss] for run in runs], dtype=np.float64)
    for name, column in (("parameters", table[:, 0]), ("tokens", table[:, 1])):
        if (found := len(np.unique(column))) < LEAST_VALUES:
            raise ScalingError(f"{found} values of {name} among {len(runs)} runs: at least {LEAST_VALUES} are needed")
    return table[:, 0], table[:, 1], table[:, 2]


def _terms(point: Floats, data: _Data) -> Floats:
    """Return the logarithms of the three terms by run, ``[3, runs]``; a point is (a, b, e, alpha, beta)."""
    a, b, e, alpha, beta = point
    return np.stack((a - alpha * data.parameters, b - beta * data.tokens, np.full_like(data.losses, e)))


def _residuals(point: Floats, data: _Data) -> Floats:
    """Return ``log L`` predicted minus measured, ``[runs]``."""
    terms = _terms(point, data)
    top = terms.max(axis=0)
    found: Floats = top + np.log(np.exp(terms - top).sum(axis=0)) - data.losses
    return found


def _slopes(point: Floats, data: _Data) -> Floats:
    """Return derivatives of the residuals, ``[runs, 5]``: each term's share of the loss times that of its logarithm."""
    terms = _terms(point, data)
    shares = np.exp(terms - terms.max(axis=0))
    shares /= shares.sum(axis=0)
    return np.stack((*shares, -shares[0] * data.parameters, -shares[1] * data.tokens), axis=1)


def _objective(point: Floats, data: _Data) -> float:
    """Return Huber's loss summed over runs."""
    size = np.abs(_residuals(point, data))
    return float(np.where(size <= HUBER, size**2 / 2, HUBER * (size - HUBER / 2)).sum())


def _starts(data: _Data) -> list[Floats]:
    """Return the best points of a grid of exponents and of each term's share of the mean loss."""
    mean = float(data.losses.mean())
    shares = [mean + np.log(share) for share in _GRID_SHARES]
    grid = [np.array(point) for point in itertools.product(shares, shares, shares, _GRID_EXPONENTS, _GRID_EXPONENTS)]
    return sorted(grid, key=lambda point: _objective(point, data))[:STARTS]


def _descend(data: _Data, starts: Sequence[Floats], effort: _Effort) -> list[Floats]:
    """Return the ends of descents from these points, the lowest first."""
    try:
        from scipy.optimize import least_squares  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("scipy", "scaling", "fitting a scaling law") from error
    slopes: Any = _slopes  # scipy has no types
    free = np.full(3, np.inf)
    low, high = EXPONENTS
    found: list[Floats] = [
        least_squares(
            _residuals,
            start,
            slopes,
            bounds=((*-free, low, low), (*free, high, high)),
            loss="huber",
            f_scale=HUBER,
            args=(data,),
            xtol=effort.tolerance,
            ftol=effort.tolerance,
            gtol=effort.tolerance,
            max_nfev=effort.evaluations,
        ).x
        for start in starts
    ]
    return sorted(found, key=lambda point: _objective(point, data))


def _resampled(data: _Data, best: Floats, seed: int) -> list[Floats]:
    """Fit runs drawn with replacement; skips draws that cannot determine the constants."""
    generator = np.random.default_rng(seed)
    count = len(data.losses)
    points: list[Floats] = []
    for _ in range(MAX_DRAWS):
        drawn = data.drawn(generator.integers(0, count, count))
        if min(len(np.unique(drawn.parameters)), len(np.unique(drawn.tokens))) >= LEAST_VALUES:
            points += _descend(drawn, [best], _RESAMPLED)
        if len(points) == RESAMPLES:
            break
    return points or [best]


def _law(point: Floats, middle_n: float, middle_d: float, runs: int) -> ParametricLaw:
    a, b, e, alpha, beta = (float(value) for value in point)
    return ParametricLaw(
        irreducible=float(np.exp(e)),
        a=float(np.exp(a + alpha * middle_n)),
        b=float(np.exp(b + beta * middle_d)),
        alpha=alpha,
        beta=beta,
        source=f"fitted to {runs} runs",
    )


def _warnings(law: ParametricLaw, parameters: Floats, tokens: Floats) -> list[str]:
    said = []
    for name, exponent in (("alpha", law.alpha), ("beta", law.beta)):
        if not EXPONENTS[0] * 1.01 < exponent < EXPONENTS[1] * 0.99:
            said.append(f"{name} = {exponent:.3g} is on the bound of the search: these runs do not determine it")
    for name, values in (("parameters", parameters), ("tokens", tokens)):
        if (factor := values.max() / values.min()) < 10:
            said.append(f"{name} vary by a factor of {factor:.3g} only: below 10 the exponents are a guess")
    if law.irreducible < 1e-3:
        said.append("the irreducible loss came out as 0: the runs are too small to see it")
    if len(parameters) < 20:
        said.append(f"{len(parameters)} runs: intervals from so few are too narrow (Hoffmann et al. had over 400)")
    return said
