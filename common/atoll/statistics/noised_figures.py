"""Figures from noised sums, each with its standard error from the noise.

Every released sum is the exact one plus independent noise of the same standard deviation s. N is the number of rows
with a value (all rows minus those without: variance 2 s^2), and m1, m2 are the means of u and u^2 (``noised``). Errors
are first-order (delta method):

- mean of u, m1: s / N sqrt(1 + 2 m1^2)
- variance of u, m2 - m1^2: s / N sqrt(1 + 4 m1^2 + 2 (2 m1^2 - m2)^2)

They describe the effect of noise on the figures of these rows, not that of clipping values beyond the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from atoll.statistics.blocks import category_parts
from atoll.statistics.figures import CategoryFindings, NumericErrors, NumericFindings, Quantile
from atoll.statistics.limbs import Floats
from atoll.statistics.noised import noised_sums
from atoll.wire.statistics_query import NoisedStatistics, StatisticsQuery

LEAST_COUNT = 3.0
"""Minimum number of rows for a mean, in standard errors of that number; with fewer rows ratios are meaningless."""
SURE = 2.0
"""Standard errors to either side of a quantile's cell: about 95 % of cells then contain the quantile."""


def noised_numeric(
    query: StatisticsQuery, noised: NoisedStatistics, tensors: Mapping[str, Floats], noise: float
) -> Iterator[NumericFindings]:
    """The figures of the numeric columns."""
    sums = noised_sums(query, tensors)
    rows = float(sums["rows"][0])
    for column, (name, (low, high)) in enumerate(zip(query.numeric, noised.bounds, strict=True)):
        *cells, missing = map(float, sums["cells"][column])
        count, count_error = rows - missing, math.sqrt(2) * noise
        middle, half = (low + high) / 2, (high - low) / 2
        edges = tuple(float(edge) for edge in np.linspace(low, high, query.bins + 1))
        mean = variance = mean_error = variance_error = None
        enough = count > LEAST_COUNT * count_error
        if enough:
            first, second = float(sums["first"][column]) / count, float(sums["second"][column]) / count
            mean, mean_error = middle + half * _within(first, -1, 1), half * _mean_error(first, noise / count)
            spread = second - first * first
            variance = half * half * spread * count / (count - 1) if spread > 0 else None
            variance_error = half * half * _variance_error(first, second, noise / count)
        deviation = None if variance is None else math.sqrt(variance)
        yield NumericFindings(
            name=name,
            count=round(count),
            missing=round(missing),
            resolution=None,
            mean=mean,
            variance=variance,
            deviation=deviation,
            edges=edges,
            histogram=tuple(map(round, cells)),
            quantiles=tuple(_quantiles(query.shares, cells, edges, noise, enough=enough)),
            errors=NumericErrors(
                count=count_error,
                missing=noise,
                mean=mean_error,
                variance=None if variance is None else variance_error,
                deviation=None if variance_error is None or not deviation else variance_error / (2 * deviation),
                histogram=noise,
            ),
        )


def noised_categories(
    query: StatisticsQuery, tensors: Mapping[str, Floats], noise: float
) -> Iterator[CategoryFindings]:
    """The figures of the category columns."""
    cells = noised_sums(query, tensors)["categories"]
    for column, part in category_parts(query):
        *levels, other, missing = map(round, map(float, cells[part]))
        yield CategoryFindings(column.name, dict(zip(column.levels, levels, strict=True)), other, missing, noise)


def _quantiles(
    shares: Sequence[float], cells: Sequence[float], edges: Sequence[float], noise: float, *, enough: bool
) -> Iterator[Quantile]:
    """Quantiles between edges, with ``SURE`` standard errors of the noise to either side.

    If C is the sum of the first k of b cells and T that of all, a share q of the rows lies below the k-th edge if C - q
    T >= 0, whose noise has variance s^2 (k (1 - q)^2 + (b - k) q^2).
    """
    sums = np.cumsum(cells)
    below = np.arange(1, len(cells) + 1)
    for share in shares:
        if not enough:
            yield Quantile(share, None, None)
            continue
        over = sums - share * sums[-1]
        error = SURE * noise * np.sqrt(below * (1 - share) ** 2 + (len(cells) - below) * share**2)
        first, last = _place(over + error >= 0), _place(over - error >= 0)
        yield Quantile(share, edges[first], edges[max(first, last) + 1])


def _place(reached: npt.NDArray[np.bool_]) -> int:
    """The first cell for which ``reached`` is true; the last one if there is none."""
    return int(np.argmax(reached)) if reached.any() else reached.size - 1


def _mean_error(first: float, relative: float) -> float:
    return relative * math.sqrt(1 + 2 * first * first)


def _variance_error(first: float, second: float, relative: float) -> float:
    return relative * math.sqrt(1 + 4 * first**2 + 2 * (2 * first**2 - second) ** 2)


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
