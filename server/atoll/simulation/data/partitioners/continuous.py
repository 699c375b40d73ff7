"""Parts by a real-valued property (flwr-datasets 0.6, ``ContinuousPartitioner``)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from atoll.simulation.data.errors import PartitionError
from atoll.simulation.data.partitioners.checks import fitting, generator
from atoll.simulation.data.partitioners.parts import Parts, even_sizes, parts_of


def continuous(values: ArrayLike, *, population: int, strictness: float, seed: int) -> Parts:
    """Sort rows by a property blended with noise, and cut them into parts whose sizes differ by at most one.

    A row's place is decided by ``strictness * z + (1 - strictness) * e``: z is its value, standardised, and e is
    standard normal.

    Args:
        values: the property of each row, real numbers [rows].
        population: number of participants.
        strictness: from 0 (parts are alike) to 1 (participant 0 has the smallest values, and so on).
        seed: integer from 0.

    Raises:
        PartitionError: if a value is not finite, or all are equal and ``strictness`` is not 0.
    """
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise PartitionError(f"values have shape {array.shape}, dtype {array.dtype}: give one number per row")
    if not 0 <= strictness <= 1:
        raise PartitionError(f"strictness is {strictness}: give a number from 0 (alike) to 1 (sorted)")
    rng, numbers = generator(seed), array.astype(np.float64)
    if (wrong := np.flatnonzero(~np.isfinite(numbers))).size:
        raise PartitionError(f"values[{wrong[0]}] is {numbers[wrong[0]]}: leave rows out whose value is not finite")
    sizes = even_sizes(numbers.size, fitting(population, numbers.size))
    spread = float(numbers.std())
    if not spread and strictness:
        raise PartitionError("all values are equal: pass strictness=0, or divide by another property")
    blended = strictness * (numbers - numbers.mean()) / (spread or 1.0)
    blended += (1 - strictness) * rng.standard_normal(numbers.size)
    owners = np.empty(numbers.size, np.int64)
    owners[np.argsort(blended, kind="stable")] = np.repeat(np.arange(population), sizes)
    return parts_of(owners, population, rng)
