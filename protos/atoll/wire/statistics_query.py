"""The query of a run of statistics: ``StatisticsQuery`` of the contract, checked when read."""

from __future__ import annotations

import math
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
MAX_NOISED_ROWS = 10_000_000
"""Largest ``max_rows`` of statistics with noise."""
MAX_BOUND = 1e30
"""Largest magnitude of a column's bound."""


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: the values in ``levels`` are counted separately, all other values together."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class NoisedStatistics:
    """Bounds of the answers to statistics whose sums get noise.

    Attributes:
        bounds: lower and upper bound of each column of numbers; values beyond count as the bound.
        max_rows: most rows of one participant.
    """

    bounds: tuple[tuple[float, float], ...]
    max_rows: int


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
        by: one of the columns of categories: count, mean and variance of each column of numbers for each of its levels
            too; empty: none.
        noised: bounds of the answers in a run with privacy terms, whose sums get noise; None: sums are exact.

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
    noised: NoisedStatistics | None = None
    by: str = ""

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
        self._check_by()
        if self.noised is not None:
            self._check_noised(self.noised)
        for share in self.quantiles:
            if not 0 < share < 1:
                raise WireError(f"statistics.quantiles: {share}; allowed are numbers above 0 and below 1")
            if self.quantiles.count(share) > 1:
                raise WireError(f"statistics.quantiles: {share} is there twice; name each once")

    def _check_by(self) -> None:
        known = [column.name for column in self.categories]
        if self.by and self.by not in known:
            raise WireError(
                f"statistics.by: {self.by!r}; allowed is a column of categories: {', '.join(known) or 'none'}"
            )
        if self.by and not self.numeric:
            raise WireError("statistics.by: there is no column of numbers to split; name one, or leave it out")
        if self.by and self.noised is not None:
            raise WireError(
                "statistics.by: not available with noise; leave it out, or use a separate run for the rows of one label"
            )

    def _check_noised(self, noised: NoisedStatistics) -> None:
        _within("max_rows", noised.max_rows, 1, MAX_NOISED_ROWS, "rows")
        if len(noised.bounds) != len(self.numeric):
            raise WireError(
                f"statistics.bounds: {len(noised.bounds)}; {len(self.numeric)} are needed, one for each column"
            )
        for name, (low, high) in zip(self.numeric, noised.bounds, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and -MAX_BOUND <= low < high <= MAX_BOUND):
                raise WireError(
                    f"statistics.bounds.{name}: {low:g} to {high:g}; allowed are two numbers, the lower first, of "
                    f"magnitudes up to {MAX_BOUND:g}"
                )
        if self.minimum_and_maximum:
            raise WireError("statistics.minimum_and_maximum: a single row decides; noise cannot hide it; leave it out")

    @property
    def shares(self) -> tuple[float, ...]:
        """The quantiles that are searched for: 0 and 1 stand for minimum and maximum."""
        return (0.0, *self.quantiles, 1.0) if self.minimum_and_maximum else self.quantiles

    @property
    def groups(self) -> int:
        """Number of groups with separate figures: the levels of ``by``, other values, no value; 0 without ``by``."""
        sizes = [len(column.levels) + 2 for column in self.categories if column.name == self.by]
        return sizes[0] if sizes else 0

    @property
    def rounds(self) -> int:
        """Number of rounds: for counts, for sums and histograms, and for refinements of quantiles; 1 with noise."""
        if not self.numeric or self.noised is not None:
            return 1
        return 2 + (self.refinements if self.shares else 0)


def query_to_proto(query: StatisticsQuery) -> participation_pb2.StatisticsQuery:
    """The query as its message."""
    noised = None
    if query.noised is not None:
        lower, upper = [low for low, _ in query.noised.bounds], [high for _, high in query.noised.bounds]
        noised = participation_pb2.NoisedStatistics(lower=lower, upper=upper, max_rows=query.noised.max_rows)
    return participation_pb2.StatisticsQuery(
        numeric=query.numeric,
        categories=[participation_pb2.CategoryColumn(name=one.name, levels=one.levels) for one in query.categories],
        bins=query.bins,
        quantiles=query.quantiles,
        minimum_and_maximum=query.minimum_and_maximum,
        refinements=query.refinements,
        min_rows=query.min_rows,
        min_participants=query.min_participants,
        noised=noised,
        by=query.by,
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
        noised=_noised_from_proto(message.noised) if message.HasField("noised") else None,
        by=message.by,
    )


def _noised_from_proto(message: participation_pb2.NoisedStatistics) -> NoisedStatistics:
    if len(message.lower) != len(message.upper):
        raise WireError(f"statistics.bounds: {len(message.lower)} lower and {len(message.upper)} upper bounds")
    return NoisedStatistics(tuple(zip(message.lower, message.upper, strict=True)), message.max_rows)


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
