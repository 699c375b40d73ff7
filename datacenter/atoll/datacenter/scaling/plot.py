"""Draw a fit: measured and fitted losses, and the best size by budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from atoll.datacenter.errors import MissingExtraError
from atoll.datacenter.scaling.laws import FLOPS_PER_PARAMETER_AND_TOKEN, LAWS, ScalingError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from atoll.datacenter.scaling.fit import Fit
    from atoll.datacenter.scaling.runs import MeasuredRun

FORMATS = (".svg", ".png", ".pdf")
MAX_CURVES = 8
"""Number of sizes that get a curve."""


def draw(fit: Fit, runs: Sequence[MeasuredRun], path: Path) -> None:
    """Write the picture; the file name selects its format.

    Raises:
        ScalingError: for an unknown format.
        MissingExtraError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise ScalingError(f"{path}: allowed are names that end in {', '.join(FORMATS)}")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("matplotlib", "scaling", "a plot") from error
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    losses, sizes = figure.subplots(1, 2)
    _losses(losses, fit, runs)
    _sizes(sizes, fit, runs)
    figure.savefig(path)


def _losses(axes: Axes, fit: Fit, runs: Sequence[MeasuredRun]) -> None:
    """Plot loss over tokens, one curve per size."""
    by_size: dict[float, list[tuple[float, float]]] = {}
    for run in runs:
        by_size.setdefault(run.parameters or 0.0, []).append((run.tokens or 0.0, run.loss or 0.0))
    for size in sorted(by_size)[:MAX_CURVES]:
        tokens, measured = zip(*sorted(by_size[size]), strict=True)
        (points,) = axes.plot(tokens, measured, "o", label=f"{size:.3g} parameters")
        wide = np.geomspace(tokens[0] / 2, tokens[-1] * 4, 50)
        axes.plot(wide, [fit.law.loss(size, value) for value in wide], "-", color=points.get_color())
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="loss, nats per token")
    axes.set_title(f"measured, and fitted within {fit.error:.2%} (root mean square)")
    axes.legend(fontsize="small")


def _sizes(axes: Axes, fit: Fit, runs: Sequence[MeasuredRun]) -> None:
    """Plot the best size over budgets, up to ten times the largest run, with the runs' own sizes."""
    budgets = [FLOPS_PER_PARAMETER_AND_TOKEN * (run.parameters or 0.0) * (run.tokens or 0.0) for run in runs]
    axes.plot(budgets, [run.parameters or 0.0 for run in runs], "o", color="grey", label="runs")
    wide = np.geomspace(min(budgets), max(budgets) * 10, 50)
    laws = {"this fit": fit.law, "Chinchilla, fitted anew": LAWS["besiroglu"]}
    for (name, law), style in zip(laws.items(), ("-", "--"), strict=True):
        axes.plot(wide, [law.optimum(budget).parameters for budget in wide], style, label=name)
    axes.axvspan(max(budgets), max(budgets) * 10, color="grey", alpha=0.15, label="beyond the runs")
    axes.set(xscale="log", yscale="log", xlabel="budget, FLOPs (6 N D)", ylabel="parameters")
    axes.set_title("compute-optimal size")
    axes.legend(fontsize="small")
