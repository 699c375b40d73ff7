"""Figures as flat rows: one row for each figure, all with the same fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.statistics.figures import CategoryFindings, NumericFindings

FIELDS = ("column", "figure", "cell", "low", "high", "value", "error")
"""A row names the column and the figure, a level or the share of a quantile, and the edges of a cell; its value is None
if it is suppressed, its error is the standard error in a private run."""
Record = dict[str, str | float | None]


def records_of(numeric: Sequence[NumericFindings], categories: Sequence[CategoryFindings]) -> Iterator[Record]:
    """The rows of all columns."""
    for column in numeric:
        yield from _numeric(column)
    for found in categories:
        for level, rows in found.counts.items():
            yield _record(found.name, "rows", rows, cell=level, error=found.error)
        yield _record(found.name, "other", found.other, error=found.error)
        yield _record(found.name, "missing", found.missing, error=found.error)


def _numeric(column: NumericFindings) -> Iterator[Record]:
    for figure in ("count", "missing", "mean", "variance", "deviation"):
        yield _record(column.name, figure, getattr(column, figure), error=getattr(column.errors, figure, None))
    for one in column.quantiles:
        yield _record(column.name, "quantile", one.value, cell=repr(one.share), low=one.low, high=one.high)
    for low, high, rows in zip(column.edges[:-1], column.edges[1:], column.histogram, strict=True):
        error = None if column.errors is None else column.errors.histogram
        yield _record(column.name, "histogram", rows, low=low, high=high, error=error)
    for group in column.groups:
        for figure in ("count", "mean", "variance", "deviation"):
            yield _record(column.name, f"{figure} of {group.kind}", getattr(group, figure), cell=group.level)


def _record(
    column: str,
    figure: str,
    value: float | None,
    *,
    cell: str = "",
    low: float | None = None,
    high: float | None = None,
    error: float | None = None,
) -> Record:
    values = {"low": low, "high": high, "value": value, "error": error}
    return {"column": column, "figure": figure, "cell": cell, **values}
