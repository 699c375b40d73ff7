"""Converts figures to inline SVG with the page's fonts and colours (light or dark), and separate ids."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from matplotlib import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#000001"
LINE = "#000002"
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # participants choose these names
    "svg.hashsalt": "atoll",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def drawing(**settings: object) -> AbstractContextManager[None]:
    """A context in which matplotlib uses the page's style (and ``settings``) instead of the user's settings."""
    return style.context(
        [_STYLE, {name.replace("__", "."): value for name, value in settings.items()}], after_reset=True
    )


def stand_in(index: int) -> str:
    """A placeholder colour that ``to_svg`` replaces by one of the page's."""
    return f"#0000{0x10 + index:02x}"


def to_svg(figure: Figure, name: str, label: str, colours: Mapping[str, str]) -> str:
    """The figure as an ``<svg>`` element.

    Args:
        figure: drawn within ``drawing()``, within which this must also be called.
        name: unique on the page, letters and digits; prefixes all ids.
        label: text for screen readers.
        colours: placeholder colour → CSS custom property, e.g. ``{stand_in(0): "--c1"}``.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r"(font: [^;\"']*?)(?:'[^']*'|[A-Za-z ]*sans-serif).*?(?=[;\"])", r"\1system-ui, sans-serif", text)
    for drawn, shown in {INK: "currentColor", LINE: "var(--line)", **_as_vars(colours)}.items():
        text = text.replace(drawn, shown)
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)


def _as_vars(colours: Mapping[str, str]) -> dict[str, str]:
    return {drawn: f"var({shown})" for drawn, shown in colours.items()}
