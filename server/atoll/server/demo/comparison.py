"""The private demo's report: one page with accuracy with and without privacy, and the epsilon spent."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

Curve = Sequence[float]
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Digits with differential privacy</title>
<style>body {{ font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
td {{ padding: .1rem 1rem .1rem 0 }} svg {{ max-width: 100%; height: auto }}</style></head>
<body><h1>Digits with differential privacy</h1>
{plot}
<table>{rows}</table>
{words}
</body></html>
"""


def page(plain: Curve, private: Curve, spent: Curve, facts: Mapping[str, str], words: Sequence[str]) -> str:
    """One HTML page.

    Args:
        plain: accuracy after each round without privacy.
        private: accuracy after each round with privacy.
        spent: epsilon after each private round, by the ledger.
        facts: rows of the table.
        words: paragraphs below the table.
    """
    rows = "".join(f"<tr><td>{html.escape(key)}</td><td>{html.escape(value)}</td></tr>" for key, value in facts.items())
    said = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in words)
    return _PAGE.format(plot=_plot(plain, private, spent), rows=rows, words=said)


def _plot(plain: Curve, private: Curve, spent: Curve) -> str:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    accuracy, budget = figure.subplots(1, 2)
    accuracy.plot(range(1, len(plain) + 1), plain, "--", color="black", label="without privacy")
    accuracy.plot(range(1, len(private) + 1), private, label="with privacy")
    accuracy.set(xlabel="rounds", ylabel="held-out accuracy", ylim=(0, 1))
    accuracy.legend(loc="lower right")
    budget.plot(range(1, len(spent) + 1), spent)
    budget.set(xlabel="rounds", ylabel="epsilon spent", ylim=(0, None))
    for axes in (accuracy, budget):
        axes.grid(alpha=0.3)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]
