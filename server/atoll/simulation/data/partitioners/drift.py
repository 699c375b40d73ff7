"""Label shares that move with the round.

The forms of drift are those of Gama et al. 2014, https://doi.org/10.1145/2523813, figure 2: sudden, incremental and
reoccurring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.checks import Classes, classes_of, concentrations, generator, whole
from atoll.simulation.data.partitioners.parts import Indices, Parts


@dataclass(frozen=True, eq=False)
class Drift:
    """Rows of each participant at any progress between a start and an end; created by ``drift``.

    Rows change no more than shares do: of each class, a participant holds the first rows of its own fixed order. Two
    participants may hold the same row.

    Attributes:
        start: label shares of each participant at progress 0, float64 [population, classes]; rows add up to 1.
        end: label shares at progress 1, likewise.
        size: rows of each participant.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    size: int
    _pools: tuple[Indices, ...] = field(repr=False)

    @property
    def population(self) -> int:
        """Number of participants."""
        return len(self.start)

    def shares(self, progress: float) -> NDArray[np.float64]:
        """Label shares at a progress from 0 to 1, float64 [population, classes].

        Raises:
            PartitionError: if ``progress`` is not from 0 to 1.
        """
        if not 0 <= progress <= 1:
            raise PartitionError(f"progress is {progress}: give a number from 0 (start) to 1 (end)")
        return (1 - progress) * self.start + progress * self.end

    def part(self, participant: int, progress: float) -> Indices:
        """``size`` rows of one participant; each class has its share of them, to within one row.

        Args:
            participant: number of the participant, from 0.
            progress: from 0 to 1, of ``incremental``, ``sudden`` or ``recurring``.

        Raises:
            PartitionError: if there is no such participant, or ``progress`` is not from 0 to 1.
        """
        if not 0 <= participant < self.population:
            raise PartitionError(f"participant is {participant}: give a number from 0 to {self.population - 1}")
        counts = _rounded(self.shares(progress)[participant], self.size)
        return np.concatenate([self._window(participant, *pair) for pair in zip(self._pools, counts, strict=True)])

    def parts(self, progress: float) -> Parts:
        """The rows of every participant."""
        return tuple(self.part(participant, progress) for participant in range(self.population))

    def _window(self, participant: int, pool: Indices, count: int) -> Indices:
        """``count`` rows of a class from the participant's own offset on; offsets are as far apart as possible."""
        first = participant * pool.size // self.population
        return pool[(first + np.arange(count)) % pool.size]


def drift(labels: ArrayLike, *, start: ArrayLike, end: ArrayLike, size: int, seed: int) -> Drift:
    """Let label shares move from ``start`` to ``end``.

    Args:
        labels: integers or texts [rows].
        start: label shares of each participant, [population, classes], from 0; each participant's are scaled to add
            up to 1. ``dirichlet_shares`` draws some.
        end: likewise.
        size: rows of each participant at any time.
        seed: integer from 0; determines which rows of a class a participant holds.

    Raises:
        PartitionError: if the shares have another shape, or a participant would hold more rows of a class than there
            are.
    """
    classes, rng = classes_of(labels), generator(seed)
    first, last = _shares(start, classes, "start"), _shares(end, classes, "end")
    if first.shape != last.shape:
        raise PartitionError(f"start has {len(first)} participants and end {len(last)}: give both for the same ones")
    most = np.maximum(first, last).max(axis=0)
    short = np.flatnonzero(np.ceil(most * whole(size, "size")) > classes.counts)
    if short.size:
        at = int(short[0])
        raise PartitionError(
            f"size is {size}: a share of {most[at]:.3g} needs more than the {classes.counts[at]} rows of class "
            f"{classes.names[at]!s}; lower size to {int(np.min(classes.counts / np.maximum(most, 1e-12)))} at most"
        )
    pools = tuple(rng.permutation(classes.rows(number)) for number in range(len(classes)))
    return Drift(first, last, int(size), pools)


def dirichlet_shares(*, population: int, classes: int, alpha: float, seed: int) -> NDArray[np.float64]:
    """Label shares of each participant, drawn from Dirichlet(alpha), float64 [population, classes].

    Raises:
        PartitionError: if ``alpha`` is not above 0.
    """
    alphas = concentrations(alpha, whole(classes, "classes"), "class")
    return generator(seed).dirichlet(alphas, size=whole(population, "population"))


def incremental(round_number: int, *, rounds: int) -> float:
    """Progress that grows evenly from 0 in round 0 to 1 in the last of ``rounds``, and stays there."""
    return min(1.0, whole(round_number, "round_number", 0) / max(1, whole(rounds, "rounds") - 1))


def sudden(round_number: int, *, at: int) -> float:
    """Progress that is 0 before round ``at`` and 1 from then on."""
    return float(whole(round_number, "round_number", 0) >= whole(at, "at", 0))


def recurring(round_number: int, *, period: int) -> float:
    """Progress that oscillates from 0 to 1 and back in ``period`` rounds, as a cosine."""
    return (1 - math.cos(2 * math.pi * whole(round_number, "round_number", 0) / whole(period, "period", 2))) / 2


def _shares(shares: ArrayLike, classes: Classes, name: str) -> NDArray[np.float64]:
    array = np.asarray(shares, np.float64)
    if array.ndim != 2 or not len(array) or array.shape[1] != len(classes):
        raise PartitionError(
            f"{name} has shape {array.shape}: give one row per participant and {len(classes)} columns, one per class"
        )
    if not (np.isfinite(array) & (array >= 0)).all() or not array.any(axis=1).all():
        raise PartitionError(
            f"{name} holds a negative or infinite share, or none at all for a participant: give shares from 0"
        )
    scaled: NDArray[np.float64] = array / array.sum(axis=1, keepdims=True)
    return scaled


def _rounded(shares: NDArray[np.float64], size: int) -> list[int]:
    """Whole numbers that add up to ``size``, each within one of its share: the largest remainders are rounded up."""
    exact = shares * size
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: size - counts.sum()]] += 1
    return [int(count) for count in counts]
