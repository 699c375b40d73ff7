"""Partial sums: integer sums over some of a cohort's updates, and their merging.

An accumulator, a file written by another process and a merge of several sums share one interface. Integer addition is
exact and associative, so any split of the cohort gives bit-identical sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Protocol

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation import kernel
from atoll.server.aggregation.errors import AggregationError, DuplicateUpdateError, PartialSumError
from atoll.server.aggregation.grid import Grid

BLOCK = 1 << 16
"""Elements per block when a sum is read: 512 KiB of int64, which stays in a core's cache."""


class PartialSum(Protocol):
    """The sum over some updates, readable block by block."""

    @property
    def size(self) -> int:
        """Elements of the model, N."""
        ...

    @property
    def grid(self) -> Grid:
        """The round's grid."""
        ...

    @property
    def total_weight(self) -> int:
        """Sum of the integer weights of the updates."""
        ...

    @property
    def updates(self) -> frozenset[str]:
        """The ids of the updates in the sum."""
        ...

    def sum_block(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The integer sums of elements [start, stop); do not write to them."""
        ...


class MergedSum:
    """Several partial sums read as one; adds them block by block and holds one block.

    Raises:
        PartialSumError: if there are none, they differ in size or grid, or their weights together exceed the grid's.
        DuplicateUpdateError: if two of them hold the same update.
    """

    def __init__(self, parts: Sequence[PartialSum]) -> None:
        if not parts:
            raise PartialSumError("no partial sums to merge", "give at least one accumulator or file")
        self._parts = tuple(parts)
        self.size = parts[0].size
        self.grid = parts[0].grid
        self.total_weight = parts[0].total_weight
        self.updates = parts[0].updates
        for part in parts[1:]:
            check_mergeable(self, part)
            self.total_weight += part.total_weight
            self.updates |= part.updates

    def sum_block(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The integer sums of elements [start, stop) over all parts."""
        blocks = [part.sum_block(start, stop) for part in self._parts]
        return reduce(np.add, blocks[1:], blocks[0])


def mean_block(
    partial: PartialSum, start: int, stop: int, out: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.float64]:
    """The weighted mean of elements [start, stop) as float64: sum / (total weight * 2**fraction_bits).

    It is written to ``out``, of that many elements, if given.

    The sum is rounded to float64 once and divided once, so the mean of the grid values is exact to 2 units in the last
    place, and each grid value is within half the grid's resolution of what was sent.

    Raises:
        AggregationError: if nothing was folded, or for a block outside the model.
    """
    check_not_empty(partial)
    if not 0 <= start <= stop <= partial.size:
        raise AggregationError(f"block [{start}, {stop}) is outside the model's [0, {partial.size})")
    means = np.empty(stop - start) if out is None else out
    kernel.mean(partial.sum_block(start, stop), partial.total_weight * partial.grid.scale, means)
    return means


def check_not_empty(partial: PartialSum) -> None:
    """Check that there is a mean.

    Raises:
        AggregationError: if nothing was folded.
    """
    if not partial.total_weight:
        raise AggregationError("the sum holds no update, so it has no mean", "abandon the round instead")


def check_mergeable(one: PartialSum, other: PartialSum) -> None:
    """Check that two partial sums may be added.

    Raises:
        PartialSumError: if they differ in size or grid, or their weights together exceed the grid's.
        DuplicateUpdateError: if both hold the same update.
    """
    if (one.size, one.grid) != (other.size, other.grid):
        raise PartialSumError(
            f"partial sums of different rounds or models: {one.size} elements on {one.grid}, "
            f"{other.size} elements on {other.grid}"
        )
    if twice := one.updates & other.updates:
        raise DuplicateUpdateError(f"update {min(twice)!r} is in two partial sums", "fold it in one of them only")
    total = one.total_weight + other.total_weight
    if total > one.grid.max_total_weight:
        raise PartialSumError(
            f"partial sums of total weight {total}, the round's grid admits {one.grid.max_total_weight}",
            "open the round with the whole cohort's declared weight",
        )
