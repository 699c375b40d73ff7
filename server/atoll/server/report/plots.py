"""Plots for notebooks and scripts: matplotlib figures of a run's metrics, for users to change and save."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atoll.server.control.curves import Panel, Source
from atoll.server.report.figures import draw_panel

MAX_COLUMNS = 3
PANEL_IN = (4.6, 3.2)
_COLOURS = {Source.SERVER: "#0f766e", Source.EVALUATION: "#3b6fd4", Source.TRAINING: "#b8741a"}


as_written = rc_context({"text.parse_math": False})
"""A decorator for drawing functions, so that names of metrics and runs are drawn as text and not as formulas."""


class Plot(Figure):
    """A figure without a window: a notebook shows it as the value of a cell."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


@as_written
def metrics_plot(panels: Sequence[Panel]) -> Plot:
    """Draw metrics over the rounds behind the model, each in separate axes.

    Args:
        panels: at least one.
    """
    figure, every = panel_axes(len(panels))
    for axes, panel in zip(every, panels, strict=True):
        draw_panel(axes, panel, _COLOURS)
        axes.grid(axis="y", linewidth=0.5)
        axes.legend(frameon=False, fontsize="small")
    return figure


def panel_axes(count: int) -> tuple[Plot, list[Any]]:
    """A figure with ``count`` axes, at most three in a row, whose x axes count rounds."""
    columns = min(count, MAX_COLUMNS)
    rows = math.ceil(count / columns)
    figure = Plot(figsize=(PANEL_IN[0] * columns, PANEL_IN[1] * rows), layout="constrained")
    every = [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
    for axes in every:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, every
