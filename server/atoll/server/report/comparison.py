"""Renders a comparison of runs as one HTML file, like the report of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from atoll.server import __version__
from atoll.server.control.comparing import (
    Band,
    ComparedMetric,
    ComparedRun,
    VariantSummary,
    compared_metrics,
    summaries,
)
from atoll.server.report.figures import FULL_IN, HALF_IN, MARKERS_UP_TO, new_figure
from atoll.server.report.plots import Plot, as_written, panel_axes
from atoll.server.report.render import MAX_METRIC_PLOTS, template
from atoll.server.report.svg import drawing, stand_in, to_svg
from atoll.text.figures import counted

COLOURS = ("#0f766e", "#b8741a", "#3b6fd4", "#b3304a", "#7d5ba6", "#5b6875", "#6a9a1f", "#c2529b")
"""Colours of the variants, as on the page; further variants reuse them with other line styles."""
_LINES = ("-", "--", ":", "-.")
_STAND_INS = tuple(stand_in(64 + index) for index in range(len(COLOURS)))
_VARIABLES = {colour: f"--v{index}" for index, colour in enumerate(_STAND_INS)}
_BAND_OPACITY = 0.16
_NAMED_IN_LEGEND = 24
_NARROW_UP_TO = 3
"""Number of variants whose legend fits below a plot of half the page's width."""


def render_comparison(runs: Sequence[ComparedRun], *, now: float) -> str:
    """Render a comparison of runs as one HTML page.

    Args:
        runs: at least one; runs of one variant are repeats.
        now: seconds since the epoch, UTC; shown at the foot of the page.
    """
    metrics = compared_metrics(runs)
    places = _places(runs)
    drawn = metrics[:MAX_METRIC_PLOTS]
    wide = len(places) > _NARROW_UP_TO
    plots = [
        _figure(metric, places, f"metric{index}", wide=wide or (index + 1 == len(drawn) and index % 2 == 0))
        for index, metric in enumerate(drawn)
    ]
    found = summaries(runs)
    return template("comparison.html.j2").render(
        title=f"{counted(len(found), 'variant')}, {counted(len(runs), 'run')}",
        summaries=found,
        runs=runs,
        metrics=metrics,
        plots=plots,
        wide=wide,
        keys=_keys_to_show(found),
        places=places,
        colours=len(COLOURS),
        repeated=any(one.runs > 1 for one in found),
        virtual=any(run.virtual_s for run in runs),
        private=any(run.epsilon is not None for run in runs),
        now=now,
        version=__version__,
    )


@as_written
def comparison_plot(runs: Sequence[ComparedRun], metrics: Sequence[ComparedMetric]) -> Plot:
    """Draw metrics over the rounds, each in separate axes: a curve for each variant, with a band over its repeats.

    Args:
        runs: all runs, whose order determines the colours.
        metrics: at least one.
    """
    figure, every = panel_axes(len(metrics))
    places = _places(runs)
    for axes, metric in zip(every, metrics, strict=True):
        lines = _draw(axes, metric, places, COLOURS)
        axes.grid(axis="y", linewidth=0.5)
        if len(metric.bands) <= _NAMED_IN_LEGEND:
            axes.legend(lines.values(), lines, frameon=False, fontsize="small")
    return figure


def _figure(metric: ComparedMetric, places: Mapping[str, int], name: str, *, wide: bool) -> str:
    with drawing():
        figure, axes = new_figure((FULL_IN[0], HALF_IN[1]) if wide else HALF_IN)
        lines = _draw(axes, metric, places, _STAND_INS)
        if len(metric.bands) <= _NAMED_IN_LEGEND:
            figure.legend(lines.values(), lines, loc="outside lower center", ncols=2, handlelength=1.8)
        return to_svg(figure, name, f"{metric.metric} over rounds, {metric.source.label}", _VARIABLES)


def _draw(
    axes: Axes, metric: ComparedMetric, places: Mapping[str, int], colours: Sequence[str]
) -> Mapping[str, Line2D]:
    """Draw a curve for each variant; returns the lines for the legend, from which matplotlib would omit some labels."""
    lines = {}
    for band in metric.bands:
        place = places[band.variant]
        style = _LINES[place // len(colours) % len(_LINES)]
        if band.points:
            lines[band.variant] = _draw_band(axes, band, colours[place % len(colours)], style)
    axes.set_title(f"{metric.metric}, {metric.source.label}")
    axes.set_xlabel("rounds behind the model")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02, y=0.12)
    return lines


def _draw_band(axes: Axes, band: Band, colour: str, line: str) -> Line2D:
    x, mean, low, high = zip(*band.points, strict=True)
    marker = "o" if len(x) <= MARKERS_UP_TO else None
    (drawn,) = axes.plot(x, mean, line, color=colour, linewidth=1.8, marker=marker, markersize=2.6, label=band.variant)
    if len(band.final.values) > 1:
        axes.fill_between(x, low, high, color=colour, alpha=_BAND_OPACITY, linewidth=0)
    return drawn


def _keys_to_show(variants: Sequence[VariantSummary]) -> list[str]:
    """The job's keys in which variants differ, if their names omit some of them."""
    keys = list(dict.fromkeys(key for one in variants for key in one.settings))
    return keys if any(key not in one.variant for one in variants for key in one.settings) else []


def _places(runs: Sequence[ComparedRun]) -> dict[str, int]:
    return {variant: place for place, variant in enumerate(dict.fromkeys(run.variant for run in runs))}
