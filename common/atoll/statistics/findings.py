"""The figures of a statistics run, to read, print and save as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

from atoll.statistics.blocks import category_parts
from atoll.statistics.errors import FindingsError
from atoll.statistics.figures import CategoryFindings, GroupFindings, NumericErrors, NumericFindings, Quantile
from atoll.statistics.grid import GRID_BITS, Range, cell_width
from atoll.statistics.hiding import SUPPRESSED
from atoll.statistics.limbs import Floats, from_limbs
from atoll.statistics.noised import NOISE, noised_sums
from atoll.statistics.noised_figures import noised_categories, noised_numeric
from atoll.statistics.records import Record, records_of
from atoll.statistics.scaling import Scaling
from atoll.statistics.state import State
from atoll.wire.statistics_query import StatisticsQuery

FORMAT = "atoll.statistics/1"


@dataclass(frozen=True)
class Findings:
    """The figures of a run of statistics.

    Attributes:
        participants: number of participants.
        rows: rows of all participants.
        numeric: the numeric columns, in the order of the job.
        categories: the category columns, in the order of the job.
        noise: standard error of ``rows``, and of each count of cells, in a private run; None if figures are exact.
    """

    participants: int
    rows: int
    numeric: tuple[NumericFindings, ...]
    categories: tuple[CategoryFindings, ...]
    noise: float | None = None

    @classmethod
    def of(cls, query: StatisticsQuery, tensors: Mapping[str, Floats]) -> Self:
        """The figures in the final model of a run.

        Raises:
            FindingsError: if rounds are missing, or the sums contradict each other.
        """
        participants = [int(count) for count in tensors["participants"]]
        if not all(participants):
            raise FindingsError(f"the run has released {sum(map(bool, participants))} of {query.rounds} rounds; wait")
        if query.noised is not None:
            noise = float(tensors[NOISE][0])
            rows = round(float(noised_sums(query, tensors)["rows"][0]))
            columns = tuple(noised_numeric(query, query.noised, tensors, noise))
            return cls(participants[0], rows, columns, tuple(noised_categories(query, tensors, noise)), noise)
        state = State(query, tensors)
        numeric = tuple(_numeric(state, column) for column in range(len(query.numeric)))
        return cls(participants[0], from_limbs(tensors["rows"][0]), numeric, tuple(_categories(query, tensors)))

    def __getitem__(self, name: str) -> NumericFindings | CategoryFindings:
        """The column of this name."""
        columns: list[NumericFindings | CategoryFindings] = [*self.numeric, *self.categories]
        for column in columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def column(self, name: str) -> NumericFindings:
        """The numeric column of this name.

        Raises:
            FindingsError: if there is none.
        """
        for column in self.numeric:
            if column.name == name:
                return column
        known = ", ".join(one.name for one in self.numeric) or "none"
        raise FindingsError(f"there is no numeric column {name!r}; there are: {known}")

    def scaling(self, columns: Sequence[str] | None = None) -> Scaling:
        """Mean and deviation of columns, to standardise features.

        Args:
            columns: in the order of the features; None: all numeric columns.

        Raises:
            FindingsError: if a column is unknown or suppressed.
        """
        chosen = [one.name for one in self.numeric] if columns is None else list(columns)
        means, deviations = [], []
        for column in map(self.column, chosen):
            if column.mean is None or column.deviation is None:
                raise FindingsError(f"column {column.name!r} is suppressed or has fewer than 2 values; leave it out")
            means.append(column.mean)
            deviations.append(column.deviation)
        return Scaling(tuple(chosen), tuple(means), tuple(deviations))

    def records(self) -> list[Record]:
        """One row for each figure, for a CSV file or a DataFrame; see ``records.FIELDS``."""
        return list(records_of(self.numeric, self.categories))

    def to_json(self) -> str:
        """The figures as JSON; ``from_json`` reads them."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """The content of the JSON file."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read figures from the output of ``to_json``.

        Raises:
            FindingsError: if the text is something else.
        """
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise FindingsError(f"format {found['format']!r}; this version reads {FORMAT!r}")
            numeric = tuple(_numeric_from(one) for one in found["numeric"])
            categories = tuple(CategoryFindings(**one) for one in found["categories"])
            return cls(found["participants"], found["rows"], numeric, categories, found.get("noise"))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise FindingsError(f"these are not the findings of a statistics run: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the figures to a JSON file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the figures of a JSON file. Raises as ``from_json``, and OSError."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


def _numeric(state: State, column: int) -> NumericFindings:
    name, tensors = state.query.numeric[column], state.tensors
    count, missing = (_released(tensors[key][column]) for key in ("numeric/present", "numeric/missing"))
    if not count:
        return NumericFindings(name, count, missing, None, None, None, None, (), (), _unknown(state.query.shares))
    found = state.range_of(column)
    mean, variance = _moments(
        count, from_limbs(tensors["numeric/sum"][column]), from_limbs(tensors["numeric/squares"][column]), found
    )
    counts = tuple(map(_released, tensors["numeric/histogram"][column]))
    edges = tuple(_edges(found, state.query.bins))
    return NumericFindings(
        name,
        count,
        missing,
        found.resolution,
        mean,
        variance,
        None if variance is None else math.sqrt(variance),
        edges,
        counts[: len(edges) - 1],
        tuple(_quantiles(state, column, found)),
        groups=tuple(_groups(state, column, found)),
    )


def _groups(state: State, column: int, found: Range) -> Iterator[GroupFindings]:
    query, tensors = state.query, state.tensors
    levels = [level for category in query.categories if category.name == query.by for level in category.levels]
    kinds = [*(("level", level) for level in levels), ("other", ""), ("missing", "")] if query.by else []
    for place, (kind, level) in enumerate(kinds):
        count = _released(tensors["groups/present"][column, place])
        mean = variance = None
        if count:
            total = from_limbs(tensors["groups/sum"][column, place])
            mean, variance = _moments(count, total, from_limbs(tensors["groups/squares"][column, place]), found)
        deviation = None if variance is None else math.sqrt(variance)
        yield GroupFindings(kind, level, count, mean, variance, deviation)


def _moments(count: int, total: int, squares: int, found: Range) -> tuple[float, float | None]:
    """Mean and variance from integer sums, computed as rational numbers and rounded once."""
    unit = Fraction(2) ** (found.exponent - GRID_BITS)
    mean = float(Fraction(total, count) * unit)
    if count < 2:
        return mean, None
    spread = count * squares - total * total
    if spread < 0:
        raise FindingsError("sums and sums of squares contradict each other: an answer was not made from a table")
    return mean, float(Fraction(spread, count * (count - 1)) * unit**2)


def _edges(found: Range, bins: int) -> Iterator[float]:
    width = cell_width(found.low, found.high, bins)
    for edge in range(found.low, found.high, width):
        yield edge * found.resolution
    yield found.high * found.resolution


def _quantiles(state: State, column: int, found: Range) -> Iterator[Quantile]:
    for place, share in enumerate(state.query.shares):
        low, high = state.cell_of(column, place)
        if low == high:
            yield Quantile(share, None, None)
        else:
            yield Quantile(share, low * found.resolution, high * found.resolution)


def _unknown(shares: Sequence[float]) -> tuple[Quantile, ...]:
    return tuple(Quantile(share, None, None) for share in shares)


def _categories(query: StatisticsQuery, tensors: Mapping[str, Floats]) -> Iterator[CategoryFindings]:
    for column, part in category_parts(query):
        *levels, other, missing = map(_released, tensors["categories"][part])
        yield CategoryFindings(column.name, dict(zip(column.levels, levels, strict=True)), other, missing)


def _released(count: float) -> int | None:
    return None if count == SUPPRESSED else int(count)


def _numeric_from(table: dict[str, Any]) -> NumericFindings:
    quantiles = tuple(Quantile(**one) for one in table["quantiles"])
    errors = table.get("errors")
    groups = tuple(GroupFindings(**one) for one in table.get("groups", ()))
    made = {"errors": None if errors is None else NumericErrors(**errors), "groups": groups}
    lists = {"edges": tuple(table["edges"]), "histogram": tuple(table["histogram"]), "quantiles": quantiles}
    return NumericFindings(**{**table, **lists, **made})
