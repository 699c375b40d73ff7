"""Label skew with given sizes: a Dirichlet draw for each participant.

Source: Acar et al. 2021, https://arxiv.org/abs/2111.04263, and its published code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.simulation.data.partitioners.checks import classes_of, concentrations, generator, whole_sizes
from atoll.simulation.data.partitioners.parts import UNASSIGNED, Indices, Parts, parts_of

BLOCK = 1 << 14
"""Turns drawn at once; bounds the memory, and the turns to redraw when a class is exhausted."""


def inner_dirichlet(
    labels: ArrayLike, *, sizes: Sequence[int] | Indices, alpha: float | Sequence[float], seed: int
) -> Parts:
    """Give each participant a number of rows with its own label shares, drawn from Dirichlet(alpha).

    Participants that are not full take turns in random order; in a turn a participant draws a class by its shares and
    gets a random row of it. Once a class is exhausted, the shares of the others are scaled up.

    Args:
        labels: integers or texts [rows].
        sizes: rows of each participant; rows beyond their sum are left out.
        alpha: concentration above 0, one for all classes or one each, in the order of sorted labels.
        seed: integer from 0.

    Raises:
        PartitionError: if ``alpha`` is not above 0, or the sizes add up to more than there are rows.
    """
    classes, rng = classes_of(labels), generator(seed)
    checked = whole_sizes(sizes, classes.codes.size)
    shares = rng.dirichlet(concentrations(alpha, len(classes), "class"), size=checked.size)
    turns = _turns(checked, rng)
    drawn = _draw(turns, np.nan_to_num(shares), classes.counts, rng)
    owners = np.full(classes.codes.size, UNASSIGNED, np.int64)
    for number in range(len(classes)):
        takers = turns[drawn == number]
        owners[rng.permutation(classes.rows(number))[: takers.size]] = takers
    return parts_of(owners, checked.size, rng)


def _turns(sizes: Indices, rng: np.random.Generator) -> Indices:
    """The participant of each turn, int64 [sum of sizes]: uniform over those that are not full.

    A participant's turns are the first arrivals of a Poisson process; merging equal processes, of which each stops when
    its participant is full, makes the next arrival equally likely for all that still run.
    """
    takers = np.repeat(np.arange(sizes.size), sizes)
    waits = np.cumsum(rng.exponential(size=takers.size))
    starts = (np.cumsum(sizes) - sizes)[sizes > 0]
    before = np.concatenate([[0.0], waits])[starts]
    return takers[np.argsort(waits - np.repeat(before, sizes[sizes > 0]), kind="stable")]


def _draw(turns: Indices, shares: NDArray[np.float64], counts: Indices, rng: np.random.Generator) -> Indices:
    """The class of each turn's row, int64 [turns].

    Draws ``BLOCK`` turns at once, and keeps those before the first one for a class without rows.
    """
    left, drawn, done = counts.copy(), np.empty(turns.size, np.int64), 0
    bounds, known = np.cumsum(shares, axis=1), left > 0
    while done < turns.size:
        if not np.array_equal(known, left > 0):
            bounds, known = np.cumsum(_of_classes_left(shares, left), axis=1), left > 0
        mine = bounds[turns[done : done + BLOCK]]
        found = (mine[:, :-1] <= rng.random((len(mine), 1)) * mine[:, -1:]).sum(axis=1)
        taken = _until_exhausted(found, left)
        drawn[done : done + taken] = found[:taken]
        left -= np.bincount(found[:taken], minlength=left.size)
        done += taken
    return drawn


def _of_classes_left(shares: NDArray[np.float64], left: Indices) -> NDArray[np.float64]:
    """Shares of the classes with rows left; if they have no share, in proportion to their rows."""
    open_shares = np.where(left > 0, shares, 0.0)
    none = open_shares.sum(axis=1) <= 0
    open_shares[none] = left
    return open_shares


def _until_exhausted(found: Indices, left: Indices) -> int:
    """The number of valid draws: those before the first one for an exhausted class."""
    taken = found.size
    for number in np.unique(found):
        turns = np.flatnonzero(found == number)
        if turns.size > left[number]:
            taken = min(taken, int(turns[left[number]]))
    return taken
