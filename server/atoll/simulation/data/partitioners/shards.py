"""Shards of rows sorted by label (McMahan et al. 2017, https://arxiv.org/abs/1602.05629, section 3: "Non-IID")."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.checks import Classes, classes_of, fitting, generator, whole
from atoll.simulation.data.partitioners.parts import UNASSIGNED, Indices, Parts, even_sizes, parts_of


def shards(
    labels: ArrayLike,
    *,
    population: int,
    shards_per_participant: int | None = None,
    shard_size: int | None = None,
    keep_incomplete: bool = False,
    seed: int,
) -> Parts:
    """Sort rows by label, cut them into shards of equal size, and deal the shards at random.

    ==========================================  =================================================================
    ``shards_per_participant`` alone            as many shards each; their size is what the rows allow (the paper:
                                                2 of 300 rows for 100 participants)
    ``shards_per_participant``, ``shard_size``  as many shards each; leftover rows are not used
    ``shard_size`` alone                        all shards are dealt; the first participants have one more if need be
    ==========================================  =================================================================

    Args:
        labels: integers or texts [rows].
        population: number of participants.
        shards_per_participant: shards of each participant, from 1.
        shard_size: rows of each shard, from 1.
        keep_incomplete: also deal the last shard if it is smaller than the others, unless both numbers are given.
        seed: integer from 0.

    Raises:
        PartitionError: if neither number is given, or the rows do not give a shard to every participant.
    """
    classes, rng = classes_of(labels), generator(seed)
    rows = classes.codes.size
    each, size = _numbers(rows, fitting(population, rows), shards_per_participant, shard_size)
    keep = keep_incomplete and (shards_per_participant is None or shard_size is None)
    usable = -(-rows // size) if keep else rows // size
    if usable < population:
        raise PartitionError(
            f"shard_size is {size}: {rows} rows give {usable} shards for {population} participants; lower it to "
            f"{rows // population} at most"
        )
    dealt = even_sizes(usable, population) if each is None else np.full(population, each, np.int64)
    return _deal(classes, dealt, size, usable, rng)


def _numbers(rows: int, population: int, each: int | None, size: int | None) -> tuple[int | None, int]:
    """Shards of each participant (None: all shards), and rows of a shard."""
    if each is None:
        if size is None:
            raise PartitionError("neither shards_per_participant nor shard_size is given: give one, or both")
        return None, whole(size, "shard_size")
    needed = population * whole(each, "shards_per_participant")
    if needed > rows:
        raise PartitionError(
            f"shards_per_participant is {each}: {population} participants need {needed} shards of at least one row, "
            f"but there are {rows} rows; lower it to {rows // population} at most"
        )
    if size is None:
        return each, rows // needed
    if needed * whole(size, "shard_size") > rows:
        raise PartitionError(
            f"shard_size is {size}: {needed} shards need {needed * size} rows of {rows}; lower it to {rows // needed} "
            "at most"
        )
    return each, size


def _deal(classes: Classes, dealt: Indices, size: int, usable: int, rng: np.random.Generator) -> Parts:
    """Deal ``dealt[i]`` of the usable shards to participant ``i``; rows of a class are in random order."""
    mixed = rng.permutation(classes.codes.size)
    by_label = mixed[np.argsort(classes.codes[mixed], kind="stable")]
    holder = np.full(usable, UNASSIGNED, np.int64)
    holder[rng.permutation(usable)[: dealt.sum()]] = np.repeat(np.arange(dealt.size), dealt)
    owners = np.full(classes.codes.size, UNASSIGNED, np.int64)
    covered = by_label[: usable * size]
    owners[covered] = np.repeat(holder, size)[: covered.size]
    return parts_of(owners, dealt.size, rng)
