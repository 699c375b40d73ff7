"""Columns of a table as arrays: numbers as float64 with NaN for missing values, categories as indices of levels.

A table is a mapping from names to columns, a pandas or polars DataFrame, or a pyarrow Table: ``table[name]`` must
return something that numpy can read. None, NaN, and pandas' NA and NaT are missing values.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atoll.statistics.errors import TableError
from atoll.statistics.grid import HIGHEST_OCTAVE
from atoll.wire.statistics_query import CategoryColumn

Floats = npt.NDArray[np.float64]
_MISSING_TYPES = ("NAType", "NaTType")


class Table(Protocol):
    """A table: returns a column by its name."""

    def __getitem__(self, name: str, /) -> Any:
        """The column: anything that ``numpy.asarray`` takes."""
        ...


def numbers_of(table: Table, name: str) -> Floats:
    """A numeric column; NaN for missing values.

    Raises:
        TableError: if there is no such column, or a value is not a finite number below 2^100.
    """
    column = _column(table, name)
    if column.dtype.kind in "biuf":
        values = column.astype(np.float64)
    else:
        values = np.array([math.nan if _missing(item) else _number(item, name) for item in column], np.float64)
    if isinstance(column, np.ma.MaskedArray):
        values = np.ma.MaskedArray(values, column.mask).filled(math.nan)
    if np.isinf(values).any() or (np.abs(values) >= math.ldexp(1, HIGHEST_OCTAVE)).any():
        raise TableError(f"column {name!r} has a value that is infinite or of magnitude 2^{HIGHEST_OCTAVE} or more")
    return values


def places_of(table: Table, column: CategoryColumn) -> npt.NDArray[np.int64]:
    """The index of each row's level; other values have the next index, missing values the one after it.

    Raises:
        TableError: if there is no such column.
    """
    values = _column(table, column.name)
    known = {level: place for place, level in enumerate(column.levels)}
    other = len(known)
    masked = np.ma.getmaskarray(values)
    places = (
        other + 1 if hidden or _missing(item) else known.get(_text(item), other)
        for item, hidden in zip(values, masked, strict=True)
    )
    return np.fromiter(places, np.int64, values.size)


def _column(table: Table, name: str) -> npt.NDArray[Any]:
    try:
        found = table[name]
    except (KeyError, IndexError, ValueError) as error:
        raise TableError(f"the table has no column {name!r}: give it in table(), or leave it out of the job") from error
    try:
        column: npt.NDArray[Any] = found if isinstance(found, np.ma.MaskedArray) else np.asarray(found)
    except ValueError:
        raise TableError(f"column {name!r} has rows of different shapes; one value a row is needed") from None
    if column.ndim != 1:
        raise TableError(f"column {name!r} has {column.ndim} dimensions; 1 is needed")
    return column


def _missing(item: object) -> bool:
    if item is None or item is np.ma.masked or type(item).__name__ in _MISSING_TYPES:
        return True
    if isinstance(item, np.datetime64 | np.timedelta64):
        return bool(np.isnat(item))
    return isinstance(item, float | np.floating) and math.isnan(item)


def _number(item: Any, name: str) -> float:
    """An item as a number; infinite if it is outside float64's range."""
    try:
        if not isinstance(item, np.complexfloating):  # float() would drop the imaginary part
            return float(item)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        pass
    raise TableError(f"column {name!r} has a value of type {type(item).__name__} that is no number") from None


def _text(item: object) -> str:
    """A value as a level: integers without a decimal point, since missing values make pandas' integers floats."""
    return str(int(item)) if isinstance(item, float | np.floating) and item.is_integer() else str(item)
