"""Argument checks shared by partitioners. Each error names the value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.parts import Indices


@dataclass(frozen=True, eq=False)
class Classes:
    """Labels as numbers of classes.

    Attributes:
        names: the labels that occur, sorted, [classes].
        codes: int64 [rows], the index in ``names`` of each row's label.
        counts: int64 [classes], rows of each class.
    """

    names: NDArray[np.generic]
    codes: Indices
    counts: Indices

    def __len__(self) -> int:
        return self.names.size

    def rows(self, number: int) -> Indices:
        """The rows of one class, ascending."""
        return np.flatnonzero(self.codes == number).astype(np.int64)


def classes_of(labels: ArrayLike, name: str = "labels") -> Classes:
    """Find the classes of a label array.

    Raises:
        PartitionError: if it is empty, has more than one dimension, or holds neither integers nor texts.
    """
    array = np.asarray(labels)
    if array.ndim != 1:
        raise PartitionError(f"{name} has shape {array.shape}: give one value per row, shape (rows,)")
    if not array.size:
        raise PartitionError(f"{name} is empty: there is nothing to divide")
    if array.dtype.kind not in "iubUS":
        raise PartitionError(
            f"{name} has dtype {array.dtype}: give integers or texts; continuous() divides by a real-valued property"
        )
    names, codes, counts = np.unique(array, return_inverse=True, return_counts=True)
    return Classes(names, codes.astype(np.int64), counts.astype(np.int64))


def generator(seed: int) -> np.random.Generator:
    """The random generator for a seed.

    Raises:
        PartitionError: if it is not an integer from 0.
    """
    return np.random.default_rng(whole(seed, "seed", least=0))


def whole(value: int, name: str, least: int = 1) -> int:
    """``value`` as an int.

    Raises:
        PartitionError: if it is not an integer, or below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise PartitionError(f"{name} is {value!r}: give an integer of at least {least}")
    return int(value)


def fitting(population: int, available: int, what: str = "rows") -> int:
    """``population`` as an int.

    Raises:
        PartitionError: if it is not an integer from 1 to the number of rows (or columns).
    """
    if whole(population, "population") > available:
        raise PartitionError(f"population is {population} for {available} {what}: lower it to {available} at most")
    return int(population)


def whole_sizes(sizes: Sequence[int] | NDArray[np.integer], available: int, what: str = "rows") -> Indices:
    """Sizes as int64 [participants].

    Raises:
        PartitionError: if there are none, one is not an integer from 0, or they add up to more than there is.
    """
    array = np.asarray(sizes)
    if array.ndim != 1 or not array.size:
        raise PartitionError(f"sizes has shape {array.shape}: give one size per participant")
    if array.dtype.kind not in "iu":
        raise PartitionError(f"sizes has dtype {array.dtype}: give whole numbers of {what}")
    found = array.astype(np.int64)
    if (found < 0).any():
        at = int(np.flatnonzero(found < 0)[0])
        raise PartitionError(f"sizes[{at}] is {found[at]}: give a number of {what} from 0")
    if found.sum() > available:
        raise PartitionError(f"sizes add up to {found.sum()} {what} of {available}: lower them")
    return found


def concentrations(alpha: float | Sequence[float] | NDArray[np.floating], number: int, per: str) -> NDArray[np.float64]:
    """``alpha`` as float64 [number].

    Raises:
        PartitionError: if it is neither one number nor one per ``per``, or one is not finite and above 0.
    """
    array = np.asarray(alpha, np.float64)
    if array.shape not in {(), (number,)}:
        raise PartitionError(f"alpha has shape {array.shape}: give one number, or {number}, one per {per}")
    wrong = array[~(np.isfinite(array) & (array > 0))]
    if wrong.size:
        raise PartitionError(
            f"alpha is {wrong.flat[0]:g}: give a finite number above 0; small (0.1) makes parts differ, large (100) "
            "makes them alike"
        )
    return np.broadcast_to(array, (number,)).astype(np.float64)
