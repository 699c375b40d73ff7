"""Label skew by a Dirichlet draw for each class (Yurochkin et al. 2019, https://arxiv.org/abs/1905.12022)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.checks import Classes, classes_of, concentrations, fitting, generator, whole
from atoll.simulation.data.partitioners.parts import Indices, Parts, parts_of

DRAWS = 11
"""Maximum number of draws until every part has its minimum size."""


def dirichlet(
    labels: ArrayLike,
    *,
    population: int,
    alpha: float | Sequence[float],
    min_size: int = 1,
    balanced: bool = False,
    top_up: bool = False,
    seed: int,
) -> Parts:
    """Divide each class among participants by shares drawn from Dirichlet(alpha).

    Args:
        labels: integers or texts [rows].
        population: number of participants.
        alpha: concentration above 0, one for all participants or one each. With 0.1 a participant has most rows from
            one or two classes; with 100 parts are alike.
        min_size: minimum rows of each part. Shares are redrawn until it is met, at most ``DRAWS`` times.
        balanced: give no rows of another class to participants that already have more than ``rows / population``.
        top_up: instead of drawing again, move rows at random from the largest part to those below ``min_size``.
        seed: integer from 0.

    Raises:
        PartitionError: if ``alpha`` is not above 0, or ``min_size`` cannot be met.
    """
    classes, rng = classes_of(labels), generator(seed)
    rows = classes.codes.size
    alphas = concentrations(alpha, fitting(population, rows), "participant")
    if whole(min_size, "min_size", least=0) * population > rows:
        raise PartitionError(
            f"min_size is {min_size} for {population} participants, but there are {rows} rows: lower it to "
            f"{rows // population} at most"
        )
    counts = _counts(classes, alphas, balanced, rng)
    smallest = [int(counts.sum(axis=0).min())]
    while smallest[-1] < min_size and not top_up:
        if len(smallest) == DRAWS:
            raise PartitionError(
                f"min_size is {min_size}, but in {DRAWS} draws with alpha {alphas.min():g} the smallest of "
                f"{population} parts had at best {max(smallest)} rows: raise alpha, lower min_size or population, or "
                "pass top_up=True"
            )
        counts = _counts(classes, alphas, balanced, rng)
        smallest.append(int(counts.sum(axis=0).min()))
    owners = _owners(classes, counts, rng)
    if smallest[-1] < min_size:
        owners = _topped_up(owners, population, min_size, rng)
    return parts_of(owners, population, rng)


def _counts(classes: Classes, alphas: NDArray[np.float64], balanced: bool, rng: np.random.Generator) -> Indices:
    """Rows of each class for each participant, int64 [classes, population]; shares are cut at whole rows."""
    even, held = classes.codes.size / alphas.size, np.zeros(alphas.size, np.int64)
    counts = np.zeros((len(classes), alphas.size), np.int64)
    for number, rows in enumerate(classes.counts.tolist()):
        shares = rng.dirichlet(alphas)
        if balanced:
            shares = _without(shares, held > even)
        cuts = (np.cumsum(shares)[:-1] * rows).astype(np.int64)
        counts[number] = np.diff(cuts, prepend=0, append=rows)
        held += counts[number]
    return counts


def _without(shares: NDArray[np.float64], full: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Shares without participants that are full; even among the others if these had no share."""
    left = np.where(full, 0.0, shares)
    left = left if left.any() else (~full).astype(np.float64)
    scaled: NDArray[np.float64] = left / left.sum()
    return scaled


def _owners(classes: Classes, counts: Indices, rng: np.random.Generator) -> Indices:
    """The participant of each row; the choice of rows within a class is random."""
    owners = np.empty(classes.codes.size, np.int64)
    for number in range(len(classes)):
        owners[rng.permutation(classes.rows(number))] = np.repeat(np.arange(counts.shape[1]), counts[number])
    return owners


def _topped_up(owners: Indices, population: int, min_size: int, rng: np.random.Generator) -> Indices:
    """Move rows to the parts below ``min_size``, at each step from the largest part."""
    parts = [part.tolist() for part in parts_of(owners, population, rng)]
    largest = [(-len(part), number) for number, part in enumerate(parts) if len(part) > min_size]
    heapq.heapify(largest)
    for number, part in enumerate(parts):
        while len(part) < min_size:
            _, giver = largest[0]
            owners[row := parts[giver].pop()] = number
            part.append(row)
            heapq.heapreplace(largest, (-len(parts[giver]), giver))
    return owners
