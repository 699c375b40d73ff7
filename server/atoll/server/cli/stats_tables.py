"""Statistics as rows of tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from atoll.text.printable import printable

if TYPE_CHECKING:
    from atoll.statistics import Findings, NumericFindings, Quantile

CATEGORY_COLUMNS = ("column", "value", "rows>", "share>")
_DIGITS = 6
GROUP_COLUMNS = ("column", "label", "count>", "mean>", "deviation>")
_BARS = "▁▂▃▄▅▆▇█"
_HIDDEN = "·"


def numeric_columns(found: Findings) -> tuple[str, ...]:
    """The headings of a table of numeric columns."""
    shares = found.numeric[0].quantiles if found.numeric else ()
    return ("column", "count>", "missing>", "mean>", "deviation>", *(f"{_share(one)}>" for one in shares), "histogram")


def numeric_row(found: NumericFindings) -> tuple[str, ...]:
    """The cells of one numeric column; quantiles are the middles of their cells, rounded to the cell's precision."""
    exact = (
        _figure(getattr(found, name), getattr(found.errors, name, None))
        for name in ("count", "missing", "mean", "deviation")
    )
    return (printable(found.name), *exact, *map(_quantile, found.quantiles), bars(_clear(found)))


def category_rows(found: Findings) -> Iterator[tuple[str, ...]]:
    """A row for each value of each column of categories."""
    for column in found.categories:
        cells = {**column.counts, "(other)": column.other, "(missing)": column.missing}
        for level, rows in cells.items():
            share = "-" if rows is None or found.rows < 1 else f"{rows / found.rows:.1%}"
            yield printable(column.name), printable(level), _figure(rows, column.error), share


def _clear(found: NumericFindings) -> tuple[int | None, ...]:
    """The histogram without cells of up to two standard errors, which noise alone could fill."""
    if found.errors is None:
        return found.histogram
    least = 2 * found.errors.histogram
    return tuple(None if rows is None or rows <= least else rows for rows in found.histogram)


def group_rows(found: Findings) -> Iterator[tuple[str, ...]]:
    """A row for each label of each numeric column, if the job asked for figures by label."""
    for column in found.numeric:
        for group in column.groups:
            label = group.level if group.kind == "level" else f"({group.kind})"
            figures = map(_figure, (group.count, group.mean, group.deviation))
            yield (printable(column.name), printable(label), *figures)


def bars(counts: Sequence[int | None]) -> str:
    """A histogram with one character per cell: a dot for a suppressed cell, a space for an empty one."""
    most = max((count for count in counts if count is not None), default=0)
    return "".join(_bar(count, most) for count in counts)


def _bar(count: int | None, most: int) -> str:
    if count is None:
        return _HIDDEN
    return " " if not count else _BARS[(count * len(_BARS) - 1) // most]


def _share(found: Quantile) -> str:
    return {0.0: "min", 1.0: "max"}.get(found.share, f"{found.share:.4g}")


def _quantile(found: Quantile) -> str:
    """The middle of the cell, to one digit beyond the cell's width, which is all that is known."""
    if found.value is None or found.low is None or found.high is None:
        return _figure(found.value)
    width = found.high - found.low
    if width <= 0 or not found.value:
        return _figure(found.value)
    digits = 1 + math.ceil(math.log10(max(1.0, abs(found.value) / width)))
    return f"{found.value:.{min(digits, _DIGITS)}g}"


def _figure(value: float | None, error: float | None = None) -> str:
    if value is None:
        return "-"
    shown = str(value) if isinstance(value, int) else f"{value:.{_DIGITS}g}"
    return shown if error is None else f"{shown} ± {error:.2g}"
