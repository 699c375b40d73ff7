"""Runs side by side, deployed or simulated: rows, a table, plots, and one page."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.operator.choosing import chosen_metrics
from atoll.server.control.comparing import (
    ComparedMetric,
    ComparedRun,
    Spread,
    VariantSummary,
    compared_metrics,
    summaries,
)
from atoll.server.control.words import duration
from atoll.text.figures import bound, in_bytes
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_METRICS = 4
"""Metrics shown in the table; rows and the page have all."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs side by side; shows its table in a notebook. Runs of one variant are repeats of each other.

    Attributes:
        runs: every run, in the order given or simulated.
    """

    runs: tuple[ComparedRun, ...]

    @property
    def metrics(self) -> tuple[ComparedMetric, ...]:
        """Every metric: the last values of all runs, and over the rounds for each variant."""
        return compared_metrics(self.runs)

    @property
    def variants(self) -> tuple[VariantSummary, ...]:
        """The repeats of each variant together."""
        return summaries(self.runs)

    def rows(self) -> list[dict[str, object]]:
        """A row for each run: variant, settings, seeds, the last value of each metric, time, bytes, epsilon."""
        found = [_row(run) for run in self.runs]
        for metric in self.metrics:
            for row, value in zip(found, metric.final, strict=True):
                row[metric.metric] = value
        return found

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``.

        Raises:
            ImportError: if pandas is not installed.
        """
        return importlib.import_module("pandas").DataFrame(self.rows())

    def plot(self, *metrics: str) -> Figure:
        """Draw metrics over the rounds, a curve for each variant with a band over its repeats; by default all metrics.

        Returns:
            A matplotlib figure, which a notebook shows.

        Raises:
            BadInputError: if a metric was not measured, or none was.
            ImportError: if matplotlib is not installed.
        """
        chosen = chosen_metrics({one.metric: one for one in self.metrics}, metrics, "the runs")
        try:
            from atoll.server.report.comparison import comparison_plot  # noqa: PLC0415 - matplotlib: another extra
        except ImportError as error:
            raise ImportError(f"a plot needs {error.name}: {install_hint('server')}") from error
        return comparison_plot(self.runs, chosen)

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page: curves, the table of variants, and the runs.

        Raises:
            ImportError: if matplotlib or jinja2 is not installed.
        """
        Path(path).write_text(self.page(), encoding="utf-8")
        return Path(path)

    def page(self) -> str:
        """The page that ``report`` writes."""
        try:
            from atoll.server.report.comparison import render_comparison  # noqa: PLC0415 - as above
        except ImportError as error:
            raise ImportError(f"a report needs {error.name}: {install_hint('server')}") from error
        return render_comparison(self.runs, now=time.time())

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings and cells of the table of variants; a heading ending in ``>`` marks a column of numbers."""
        metrics = [one.metric for one in self.metrics[:SHOWN_METRICS]]
        virtual = any(run.virtual_s for run in self.runs)  # without a speed virtual time does not pass
        private = any(run.epsilon is not None for run in self.runs)
        headings = ["variant", "runs>", *(f"{name}>" for name in metrics), "rounds>"]
        headings += [*(["virtual>"] if virtual else []), "time>", "sent>", *(["epsilon>"] if private else [])]
        return tuple(headings), [_cells(one, metrics, virtual=virtual, private=private) for one in self.variants]

    def __str__(self) -> str:
        headings, rows = self.table()
        lines = [tuple(heading.rstrip(">") for heading in headings), *rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(headings))]
        numeric = [heading.endswith(">") for heading in headings]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
            for line in lines
        )

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.runs)} runs of {len(self.variants)} variants>"

    def _repr_html_(self) -> str:
        headings, rows = self.table()
        head = "".join(f"<th>{escape(heading.rstrip('>'))}</th>" for heading in headings)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><tr>{head}</tr>{body}</table>"


def _row(run: ComparedRun) -> dict[str, object]:
    return {
        "variant": run.variant,
        **run.settings,
        "run": run.run,
        "status": run.status,
        "reason": run.reason,
        "job_seed": run.job_seed,
        "cohort_seed": run.cohort_seed,
        "rounds": run.released,
        "seconds": run.seconds,
        "virtual_s": run.virtual_s,
        "sent_bytes": run.sent_bytes,
        "epsilon": run.epsilon,
        "delta": run.delta,
        "model": run.model,
    }


def _cells(one: VariantSummary, metrics: Iterable[str], *, virtual: bool, private: bool) -> tuple[str, ...]:
    cells = [one.variant, str(one.runs)]
    cells += [_with_deviation(one.metrics.get(name)) for name in metrics]
    cells.append(_with_deviation(one.rounds) if one.rounds.deviation else f"{one.rounds.mean:g}")
    if virtual:
        cells.append("-" if one.virtual_s is None or not one.virtual_s.mean else duration(one.virtual_s.mean))
    cells += ["-" if one.seconds is None else duration(one.seconds.mean), in_bytes(one.sent_bytes.mean)]
    if private:
        cells.append(bound(one.epsilon))
    return tuple(cells)


def _with_deviation(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    deviation = spread.deviation
    return f"{spread.mean:.4g}" if deviation is None else f"{spread.mean:.4g} ± {deviation:.2g}"
