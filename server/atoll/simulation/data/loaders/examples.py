"""The result of every loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.simulation.data.partitioners.parts import Indices


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows of a data set as plain numpy arrays.

    A loader's arrays are read-only, because all participants share them; ``at`` returns writable copies.

    Attributes:
        inputs: [rows, …], dtype as in the data set.
        labels: [rows] int64 classes or texts; float64 [rows] or [rows, targets] for a regression.
        columns: names of the columns of ``inputs``, empty if they have none.
        classes: names of the classes 0, 1, …, empty if they have none.
        users: the user of each row, strings [rows], for ``natural_ids``; None if the data set has none.
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    users: NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, rows: Indices) -> Examples:
        """Copies of these rows."""
        users = None if self.users is None else self.users[rows]
        return Examples(self.inputs[rows], self.labels[rows], self.columns, self.classes, users)


def read_only(examples: Examples) -> Examples:
    """The same examples with read-only arrays."""
    for array in (examples.inputs, examples.labels, examples.users):
        if array is not None:
            array.flags.writeable = False
    return examples
