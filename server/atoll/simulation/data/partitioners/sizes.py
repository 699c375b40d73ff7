"""Parts of different sizes with similar labels: rows are dealt at random.

``linear_sizes``, ``square_sizes`` and ``exponential_sizes`` give participant ``i`` of ``n`` a share in proportion to
``i + 1``, its square and its exponential (quantity skew: Kairouz et al. 2021, https://arxiv.org/abs/1912.04977,
section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.checks import fitting, generator, whole, whole_sizes
from atoll.simulation.data.partitioners.parts import Indices, Parts, cut_by, even_sizes

_Units = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def iid(rows: int, *, population: int, seed: int) -> Parts:
    """Divide rows at random into parts whose sizes differ by at most one.

    "IID" of McMahan et al. 2017, https://arxiv.org/abs/1602.05629, section 3.

    Raises:
        PartitionError: if there are more participants than rows.
    """
    return by_sizes(rows, sizes=even_sizes(whole(rows, "rows"), fitting(population, rows)), seed=seed)


def by_sizes(rows: int, *, sizes: Sequence[int] | Indices, seed: int) -> Parts:
    """Divide rows at random into parts of these sizes; rows beyond their sum are left out.

    Raises:
        PartitionError: if the sizes add up to more than ``rows``, or one is not an integer from 0.
    """
    checked = whole_sizes(sizes, whole(rows, "rows"))
    return cut_by(generator(seed).permutation(rows).astype(np.int64), checked)


def linear_sizes(rows: int, *, population: int, seed: int) -> Parts:
    """Divide rows at random: participant ``i`` gets a share in proportion to ``i + 1``.

    Shares are rounded down; the last participant gets the rest.

    Raises:
        PartitionError: if a participant would get no row.
    """
    return _growing(rows, population, seed, lambda place: place)


def square_sizes(rows: int, *, population: int, seed: int) -> Parts:
    """As ``linear_sizes``, in proportion to ``(i + 1) ** 2``."""
    return _growing(rows, population, seed, np.square)


def exponential_sizes(rows: int, *, population: int, seed: int) -> Parts:
    """As ``linear_sizes``, in proportion to ``exp(i + 1)``: ten participants already differ by a factor of 8,103."""
    return _growing(rows, population, seed, lambda place: np.exp(place - place[-1]))


def _growing(rows: int, population: int, seed: int, units: _Units) -> Parts:
    """Parts in proportion to ``units`` of 1, 2, … population."""
    sizes = _rounded(whole(rows, "rows"), fitting(population, rows), units)
    if sizes[0] < 1:
        most = _most(rows, population, units)
        raise PartitionError(
            f"population is {population}: participant 0 would get none of {rows} rows; lower it to {most} at most"
        )
    return by_sizes(rows, sizes=sizes, seed=seed)


def _rounded(rows: int, population: int, units: _Units) -> Indices:
    """Shares of the rows, rounded down, the rest for the last."""
    weights = units(np.arange(1.0, population + 1))
    sizes: Indices = (weights / weights.sum() * rows).astype(np.int64)
    sizes[-1] += rows - sizes.sum()
    return sizes


def _most(rows: int, population: int, units: _Units) -> int:
    """The largest population below this one in which every participant gets a row; by bisection."""
    least, most = 1, population
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if _rounded(rows, middle, units)[0] else (least, middle)
    return least
