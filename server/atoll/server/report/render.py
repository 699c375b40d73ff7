"""Renders a run as one HTML file without scripts and without external fonts or images."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from atoll.server import __version__
from atoll.server.control.curves import latest, panels
from atoll.server.control.fairness import evaluated_metrics, spreads
from atoll.server.control.names import names_of
from atoll.server.control.never_counted import never_counted, skipped_evaluations
from atoll.server.control.timeline import story
from atoll.server.control.words import duration, kind_words, round_label
from atoll.server.report.figures import (
    FULL_IN,
    HALF_IN,
    STATUSES,
    metric_figure,
    presence_figure,
    slowest_round,
    time_figure,
    timeline_figure,
)
from atoll.server.report.summary import absences, attendance, presence, tiles
from atoll.server.report.traffic import traffic_figure, traffic_of
from atoll.text.templates import environment

if TYPE_CHECKING:
    import jinja2

    from atoll.server.control import RunDetail
    from atoll.statistics import Findings

MAX_METRIC_PLOTS = 8
MAX_SPREADS = 4
"""Maximum number of metrics whose spread between participants is shown."""
MAX_SPREADS_ROWS = 20
"""Maximum number of rounds for each of these metrics; the last ones are shown."""


def render(detail: RunDetail, *, now: float, elements: int = 0, findings: Findings | None = None) -> str:
    """Render the report of a run as one HTML page.

    Args:
        detail: the run with its rounds and their members.
        now: seconds since the epoch, UTC; shown at the foot of the page.
        elements: size of the model, for the traffic of plain data parallelism.
        findings: the figures of a run of statistics; None for a training run, or a run that has not finished.
    """
    found = panels(detail.rounds)
    loss = next((panel for panel in found if panel.metric == "loss"), None)
    traffic = traffic_of(detail, elements)
    grid, slowest = presence(detail.rounds), slowest_round(detail.rounds)
    plots = [metric_figure(panel, f"metric{index}") for index, panel in enumerate(found[:MAX_METRIC_PLOTS])]
    if any(item.duration_s for item in detail.rounds):
        plots.append(time_figure(detail.rounds, HALF_IN if len(plots) % 2 else FULL_IN))
    return template("run.html.j2").render(
        detail=detail,
        run=detail.run,
        tiles=tuple(tiles(detail, found)),
        plots=plots,
        presence=presence_figure(grid) if grid.rows else "",
        shown_rows=len(grid.rows),
        legend=_legend(detail),
        slowest=slowest,
        timeline=timeline_figure(slowest) if slowest is not None else "",
        traffic=traffic_figure(loss, traffic) if loss is not None else "",
        sent=traffic.sent[-1] if traffic.sent else 0,
        plain=traffic.plain[-1] if traffic.plain else 0,
        elements=elements,
        findings=findings,
        story=tuple(story(slowest)) if slowest is not None else (),
        absences=absences(detail.rounds),
        never_counted=never_counted(detail.rounds),
        names=names_of(detail.rounds),
        skipped=tuple(skipped_evaluations(detail.rounds)),
        attendance=attendance(detail.rounds),
        fairness=[(name, spreads(detail.rounds, name)) for name in evaluated_metrics(detail.rounds)[:MAX_SPREADS]],
        most_spreads=MAX_SPREADS_ROWS,
        metrics=[panel.metric for panel in found[:2]],
        latest=latest,
        now=now,
        version=__version__,
    )


def _legend(detail: RunDetail) -> list[tuple[str, int]]:
    counts = Counter(member.status for item in detail.rounds for member in item.members)
    return [(status, counts[status]) for status in STATUSES if counts[status]]


def template(name: str) -> jinja2.Template:
    """A page's template, with the filters for pages."""
    return _environment().get_template(name)


@cache
def _environment() -> jinja2.Environment:
    return environment(
        "atoll.server.report",
        capitalize_first=lambda text: text[:1].upper() + text[1:],
        duration=duration,
        kind_words=kind_words,
        round_label=round_label,
        when=_when,
    )


def _when(seconds: float | None) -> str:
    return "–" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"  # noqa: RUF001
