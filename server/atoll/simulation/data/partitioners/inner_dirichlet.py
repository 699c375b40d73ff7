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
"""Turns that are drawn at once: bounds the memory, and what an exhausted class makes us draw again."""


def inner_dirichlet(
    labels: ArrayLike, *, sizes: Sequence[int] | Indices, alpha: float | Sequence[float], seed: int
) -> Parts:
    """Give each participant a number of rows with label shares of its own, drawn from Dirichlet(alpha).

    Participants that are not full yet take turns at random; in a turn a participant gets a random row of a class that
    it draws by its shares. Once a class is exhausted, the shares of the others are scaled up.

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
    """Who takes each row, int64 [sum of sizes]: each turn goes to one of those that are not full, all equally likely.

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

    Draws ``BLOCK`` turns at once, and keeps those before the first that asks for a class without rows.
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
    """Shares of the classes that have rows left; without a share in any, in proportion to the rows."""
    open_shares = np.where(left > 0, shares, 0.0)
    none = open_shares.sum(axis=1) <= 0
    open_shares[none] = left
    return open_shares


def _until_exhausted(found: Indices, left: Indices) -> int:
    """How many draws are valid: up to the first of a class that has no row left by then."""
    taken = found.size
    for number in np.unique(found):
        turns = np.flatnonzero(found == number)
        if turns.size > left[number]:
            taken = min(taken, int(turns[left[number]]))
    return taken
