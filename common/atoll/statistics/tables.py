"""A table as the columns of a query, read once and checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from atoll.statistics.columns import Table, numbers_of, places_of
from atoll.statistics.errors import TableError
from atoll.statistics.limbs import MAX_ROWS
from atoll.wire.statistics_query import StatisticsQuery

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """The columns of one table.

    Attributes:
        rows: number of rows.
        numbers: each numeric column, NaN for missing values.
        places: for each category column the index of each row's level; then other values, then missing.
    """

    rows: int
    numbers: tuple[npt.NDArray[np.float64], ...]
    places: tuple[Integers, ...]

    @cached_property
    def values(self) -> list[npt.NDArray[np.float64]]:
        """Each numeric column, without missing values."""
        return [values[~np.isnan(values)] for values in self.numbers]


def columns_of(query: StatisticsQuery, table: Table) -> Columns:
    """The columns that a query needs.

    Raises:
        TableError: if the table lacks a column, columns have different lengths, or a value is not a number.
    """
    numbers = tuple(numbers_of(table, name) for name in query.numeric)
    places = tuple(places_of(table, column) for column in query.categories)
    names = [*query.numeric, *(column.name for column in query.categories)]
    sizes = {name: column.size for name, column in zip(names, [*numbers, *places], strict=True)}
    if other := [name for name, size in sizes.items() if size != sizes[names[0]]]:
        raise TableError(
            f"the table's columns have different lengths: {other[0]!r} has more or fewer rows than {names[0]!r}; "
            "table() must give one value for each row, None where it is missing"
        )
    rows = next(iter(sizes.values()))
    if rows > MAX_ROWS:
        raise TableError(f"the table has more than {MAX_ROWS} rows")
    return Columns(rows, numbers, places)
