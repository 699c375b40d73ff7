"""A fixed number of classes for each participant.

"Quantity-based label imbalance" of Li et al. 2022, https://arxiv.org/abs/2102.02079.
"""

from __future__ import annotations

import warnings
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.simulation.data.errors import DataWarning, PartitionError
from atoll.simulation.data.partitioners.checks import Classes, classes_of, fitting, generator, whole
from atoll.simulation.data.partitioners.parts import UNASSIGNED, Indices, Parts, even_sizes, parts_of

Assignment: TypeAlias = Literal["random", "deterministic", "first_deterministic"]


def pathological(
    labels: ArrayLike,
    *,
    population: int,
    classes_per_participant: int,
    assignment: Assignment = "random",
    seed: int,
) -> Parts:
    """Give each participant rows of exactly ``classes_per_participant`` classes.

    The rows of a class are divided evenly among the participants that have it. Rows of a class that none has are left
    out, with a ``DataWarning``.

    Args:
        labels: integers or texts [rows].
        population: number of participants.
        classes_per_participant: classes of each participant, from 1.
        assignment: ``random`` draws the classes of each participant; ``deterministic`` gives participant ``i`` the
            classes ``i, i + 1, …`` (modulo their number); ``first_deterministic``, the paper's, gives it class ``i``
            and draws the others.
        seed: integer from 0.

    Raises:
        PartitionError: if there are fewer classes than asked for, or a class has fewer rows than participants.
    """
    classes, rng = classes_of(labels), generator(seed)
    each = _per_participant(classes_per_participant, classes)
    held = _held(fitting(population, classes.codes.size), len(classes), each, assignment, rng)
    holders = np.zeros((len(classes), population), np.bool_)
    holders[held, np.arange(population)[:, None]] = True
    _check(classes, holders)
    owners = np.full(classes.codes.size, UNASSIGNED, np.int64)
    for number in range(len(classes)):
        mine = np.flatnonzero(holders[number])
        if mine.size:
            rows = rng.permutation(classes.rows(number))
            owners[rows] = np.repeat(mine, even_sizes(rows.size, mine.size))
    return parts_of(owners, population, rng)


def _per_participant(number: int, classes: Classes) -> int:
    if whole(number, "classes_per_participant") > len(classes):
        raise PartitionError(
            f"classes_per_participant is {number}, but there are {len(classes)} classes: lower it to {len(classes)} at "
            "most"
        )
    return int(number)


def _held(population: int, classes: int, each: int, assignment: Assignment, rng: np.random.Generator) -> Indices:
    """The numbers of each participant's classes, int64 [population, each]."""
    first = np.arange(population) % classes
    if assignment == "deterministic":
        return (first[:, None] + np.arange(each)) % classes
    if assignment not in {"random", "first_deterministic"}:
        raise PartitionError(f"assignment is {assignment!r}: give random, deterministic or first_deterministic")
    rank = rng.random((population, classes))
    if assignment == "first_deterministic":
        rank[np.arange(population), first] = -1.0
    return np.argsort(rank, axis=1)[:, :each]


def _check(classes: Classes, holders: NDArray[np.bool_]) -> None:
    """Refuse classes with fewer rows than holders; warn about classes without a holder."""
    needed = holders.sum(axis=1)
    if (short := np.flatnonzero(needed > classes.counts)).size:
        at = int(short[0])
        raise PartitionError(
            f"class {classes.names[at]!s} has {classes.counts[at]} rows for {needed[at]} participants: lower "
            "population or classes_per_participant, or pass assignment='deterministic', which spreads classes evenly"
        )
    if not needed.all():
        names = ", ".join(str(name) for name in classes.names[needed == 0])
        warnings.warn(
            f"no participant has rows of class {names}: raise population, or pass assignment='deterministic'",
            DataWarning,
            stacklevel=3,
        )
