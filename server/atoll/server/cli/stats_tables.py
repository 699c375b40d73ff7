"""Figures of statistics as rows of tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from atoll.text.printable import printable

if TYPE_CHECKING:
    from atoll.statistics import Findings, NumericFindings, Quantile

CATEGORY_COLUMNS = ("column", "value", "rows>", "share>")
_DIGITS = 6
_BARS = "▁▂▃▄▅▆▇█"
_HIDDEN = "·"


def numeric_columns(found: Findings) -> tuple[str, ...]:
    """The heads of a table of numeric columns."""
    shares = found.numeric[0].quantiles if found.numeric else ()
    return ("column", "count>", "missing>", "mean>", "deviation>", *(f"{_share(one)}>" for one in shares), "histogram")


def numeric_row(found: NumericFindings) -> tuple[str, ...]:
    """The cells of one numeric column; quantiles are the middles of their cells, with the digits that these have."""
    figures = (found.count, found.missing, found.mean, found.deviation)
    return (printable(found.name), *map(_figure, figures), *map(_quantile, found.quantiles), bars(found.histogram))


def category_rows(found: Findings) -> Iterator[tuple[str, ...]]:
    """A row for each value of each column of categories."""
    for column in found.categories:
        cells = {**column.counts, "(other)": column.other, "(missing)": column.missing}
        for level, rows in cells.items():
            share = "-" if rows is None or not found.rows else f"{rows / found.rows:.1%}"
            yield printable(column.name), printable(level), _figure(rows), share


def bars(counts: Sequence[int | None]) -> str:
    """A histogram as one letter a cell; a dot for a suppressed one, a space for none."""
    most = max((count for count in counts if count is not None), default=0)
    return "".join(_bar(count, most) for count in counts)


def _bar(count: int | None, most: int) -> str:
    if count is None:
        return _HIDDEN
    return " " if not count else _BARS[(count * len(_BARS) - 1) // most]


def _share(found: Quantile) -> str:
    return {0.0: "min", 1.0: "max"}.get(found.share, f"{found.share:.4g}")


def _quantile(found: Quantile) -> str:
    """The middle of the cell, to a digit beyond the width of the cell, which is all that is known."""
    if found.value is None or found.low is None or found.high is None:
        return _figure(found.value)
    width = found.high - found.low
    if width <= 0 or not found.value:
        return _figure(found.value)
    digits = 1 + math.ceil(math.log10(max(1.0, abs(found.value) / width)))
    return f"{found.value:.{min(digits, _DIGITS)}g}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.{_DIGITS}g}"
