"""Rows of each class by given weights.

``power_law_weights`` computes the weights of Li et al. 2020 for MNIST (https://arxiv.org/abs/1812.06127): two classes
for each participant, sizes by a power law.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.checks import Classes, classes_of, generator, whole
from atoll.simulation.data.partitioners.parts import UNASSIGNED, Indices, Parts, parts_of


def distribution(
    labels: ArrayLike, *, weights: ArrayLike, min_per_class: int = 0, as_counts: bool = False, seed: int
) -> Parts:
    """Divide each class among participants in proportion to given weights.

    Args:
        labels: integers or texts [rows].
        weights: [population, classes], from 0, classes in the order of sorted labels; ``power_law_weights`` computes
            the paper's. A participant has no row of a class in which its weight is 0.
        min_per_class: minimum rows of each class in which a participant's weight is above 0; only the rest is divided
            by the weights.
        as_counts: use the weights as numbers of rows; leftover rows belong to no part.
        seed: integer from 0.

    Raises:
        PartitionError: if the weights have another shape, one is negative or not finite, no participant has a weight in
            a class, or a class has too few rows.
    """
    classes, rng = classes_of(labels), generator(seed)
    checked = _weights(weights, classes)
    counts = (
        _as_counts(checked, classes)
        if as_counts
        else _divided(checked, classes, whole(min_per_class, "min_per_class", 0))
    )
    owners = np.full(classes.codes.size, UNASSIGNED, np.int64)
    for number in range(len(classes)):
        takers = np.repeat(np.arange(len(checked)), counts[:, number])
        owners[rng.permutation(classes.rows(number))[: takers.size]] = takers
    return parts_of(owners, len(checked), rng)


def power_law_weights(
    *, population: int, classes: int, classes_per_participant: int = 2, sigma: float = 2.0, seed: int
) -> NDArray[np.float64]:
    """Weights of the paper: participant ``i`` has the classes ``i, i + 1, …``, with log-normal weights.

    Args:
        population: number of participants.
        classes: number of classes.
        classes_per_participant: classes of each participant, from 1.
        sigma: standard deviation of the weights' logarithm; the paper's is 2.
        seed: integer from 0.

    Returns:
        float64 [population, classes].
    """
    rng, each = generator(seed), whole(classes_per_participant, "classes_per_participant")
    if each > whole(classes, "classes"):
        raise PartitionError(f"classes_per_participant is {each} of {classes} classes: lower it to {classes} at most")
    if not (np.isfinite(sigma) and sigma >= 0):
        raise PartitionError(f"sigma is {sigma}: give a finite number from 0")
    weights = np.zeros((whole(population, "population"), classes))
    held = (np.arange(population)[:, None] + np.arange(each)) % classes
    weights[np.arange(population)[:, None], held] = rng.lognormal(0.0, sigma, (population, each))
    return weights


def _weights(weights: ArrayLike, classes: Classes) -> NDArray[np.float64]:
    array = np.asarray(weights, np.float64)
    if array.ndim != 2 or not len(array) or array.shape[1] != len(classes):
        raise PartitionError(
            f"weights have shape {array.shape}: give one row per participant and {len(classes)} columns, one per class"
        )
    if not (np.isfinite(array) & (array >= 0)).all():
        raise PartitionError("weights hold a value that is negative or not finite: give numbers from 0")
    return array


def _as_counts(weights: NDArray[np.float64], classes: Classes) -> Indices:
    if (weights != np.floor(weights)).any():
        raise PartitionError("weights hold fractions: with as_counts=True give whole numbers of rows")
    counts = weights.astype(np.int64)
    over = np.flatnonzero(counts.sum(axis=0) > classes.counts)
    if over.size:
        at = int(over[0])
        raise PartitionError(
            f"weights ask for {counts[:, at].sum()} rows of class {classes.names[at]!s}, which has {classes.counts[at]}"
            ": lower them, or pass as_counts=False to divide what there is"
        )
    return counts


def _divided(weights: NDArray[np.float64], classes: Classes, least: int) -> Indices:
    """Rows of each class by its weights, rounded so that they add up to all rows of the class."""
    holders = (weights > 0).sum(axis=0)
    for name, rows, number in zip(classes.names, classes.counts, holders, strict=True):
        if not number:
            raise PartitionError(
                f"no participant has a weight in class {name!s}: give one a weight, or leave its rows out"
            )
        if number * least > rows:
            raise PartitionError(
                f"min_per_class is {least} for {number} participants with class {name!s}, which has {rows} rows: lower "
                f"it to {rows // number} at most"
            )
    exact = weights / weights.sum(axis=0) * (classes.counts - holders * least)
    counts: Indices = np.floor(exact).astype(np.int64)
    for number, missing in enumerate((classes.counts - holders * least - counts.sum(axis=0)).tolist()):
        largest = np.argsort(counts[:, number] - exact[:, number], kind="stable")[:missing]
        counts[largest, number] += 1
    counts += least * (weights > 0)
    return counts
