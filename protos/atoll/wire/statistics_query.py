"""What a run of statistics asks for: ``StatisticsQuery`` of the contract, checked when read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.wire.errors import WireError
from atoll.wire.v1 import participation_pb2

MAX_COLUMNS = 2000
MAX_LEVELS = 1000
MAX_NAME_CHARS = 128
MAX_BINS = 1024
MAX_QUANTILES = 32
MAX_REFINEMENTS = 8
MAX_CELL = 1_000_000
"""Largest ``min_rows`` and ``min_participants``."""


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories, and the values that are counted apart; others count together."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class StatisticsQuery:
    """The columns and figures of a run of statistics, the same in each of its rounds.

    Attributes:
        numeric: columns of numbers.
        categories: columns of categories.
        bins: cells of a histogram, and cells into which a refinement cuts one.
        quantiles: shares of the rows, each above 0 and below 1.
        minimum_and_maximum: whether the lowest and the highest value are found too, within a cell.
        refinements: rounds that make the cells of quantiles narrower.
        min_rows: a cell of fewer rows is not released.
        min_participants: a cell with rows of fewer participants is not released.

    Raises:
        WireError: names a value that is out of range, and what is allowed.
    """

    numeric: tuple[str, ...] = ()
    categories: tuple[CategoryColumn, ...] = ()
    bins: int = 32
    quantiles: tuple[float, ...] = ()
    minimum_and_maximum: bool = False
    refinements: int = 2
    min_rows: int = 5
    min_participants: int = 3

    def __post_init__(self) -> None:
        names = (*self.numeric, *(column.name for column in self.categories))
        _within("numeric and categories", len(names), 1, MAX_COLUMNS, "columns")
        _check_names("numeric", "column", self.numeric)
        _check_names("categories", "column", names)
        for column in self.categories:
            _within(f"categories.{column.name}", len(column.levels), 1, MAX_LEVELS, "levels")
            _check_names(f"categories.{column.name}", "level", column.levels)
        _within("bins", self.bins, 2, MAX_BINS)
        _within("quantiles", len(self.quantiles), 0, MAX_QUANTILES, "values")
        _within("refinements", self.refinements, 0, MAX_REFINEMENTS)
        _within("min_rows", self.min_rows, 1, MAX_CELL)
        _within("min_participants", self.min_participants, 1, MAX_CELL)
        for share in self.quantiles:
            if not 0 < share < 1:
                raise WireError(f"statistics.quantiles: {share}; allowed are numbers above 0 and below 1")
            if self.quantiles.count(share) > 1:
                raise WireError(f"statistics.quantiles: {share} is there twice; name each once")

    @property
    def shares(self) -> tuple[float, ...]:
        """The quantiles that are searched for: 0 and 1 stand for minimum and maximum."""
        return (0.0, *self.quantiles, 1.0) if self.minimum_and_maximum else self.quantiles

    @property
    def rounds(self) -> int:
        """Rounds of the run: counts; sums and histograms; refinements of quantiles."""
        if not self.numeric:
            return 1
        return 2 + (self.refinements if self.shares else 0)


def query_to_proto(query: StatisticsQuery) -> participation_pb2.StatisticsQuery:
    """The query as its message."""
    return participation_pb2.StatisticsQuery(
        numeric=query.numeric,
        categories=[participation_pb2.CategoryColumn(name=one.name, levels=one.levels) for one in query.categories],
        bins=query.bins,
        quantiles=query.quantiles,
        minimum_and_maximum=query.minimum_and_maximum,
        refinements=query.refinements,
        min_rows=query.min_rows,
        min_participants=query.min_participants,
    )


def query_from_proto(message: participation_pb2.StatisticsQuery) -> StatisticsQuery:
    """The query of a message.

    Raises:
        WireError: for a value that is out of range.
    """
    return StatisticsQuery(
        numeric=tuple(message.numeric),
        categories=tuple(CategoryColumn(one.name, tuple(one.levels)) for one in message.categories),
        bins=message.bins,
        quantiles=tuple(message.quantiles),
        minimum_and_maximum=message.minimum_and_maximum,
        refinements=message.refinements,
        min_rows=message.min_rows,
        min_participants=message.min_participants,
    )


def _check_names(key: str, what: str, names: Sequence[str]) -> None:
    for name in names:
        if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise WireError(
                f"statistics.{key}: {what} {name[:40]!r}; allowed are 1 to {MAX_NAME_CHARS} printable characters"
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise WireError(f"statistics.{key}: {what} {twice!r} is there twice; name each once")


def _within(key: str, value: int, low: int, high: int, unit: str = "") -> None:
    if not low <= value <= high:
        raise WireError(f"statistics.{key}: {value} {unit}".rstrip() + f"; allowed are {low} to {high}")
