"""The notebooks run from the first cell to the last, in a kernel as Jupyter starts it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.patience import WAIT_S

EXAMPLES = Path(__file__).parents[2] / "examples"


def shown(cell: Any) -> dict[str, Any]:
    """What a cell's last line shows, by type of content."""
    return {kind: text for output in cell.get("outputs", ()) for kind, text in output.get("data", {}).items()}


def bar_of(cell: Any) -> str:
    """The bar of a cell, as it was drawn last; empty if it shows none."""
    found = [output["data"].get("text/html", "") for output in cell.get("outputs", ()) if "data" in output]
    return next((text for text in found if text.startswith("<progress")), "")


def shorten(notebook: Any) -> None:
    """Half of the rounds, and two repeats: both are in one cell each."""
    for whole, short in (("rounds=25", "rounds=12"), ("repeat=3", "repeat=2")):
        (cell,) = (cell for cell in notebook.cells if whole in cell.source)
        cell.source = cell.source.replace(whole, short)


@pytest.mark.system
def test_the_simulation_compares_optimisers_over_three_divisions() -> None:
    notebook = nbformat.read(EXAMPLES / "simulation.ipynb", as_version=4)
    shorten(notebook)
    kernel = {"metadata": {"path": str(EXAMPLES)}}
    seconds = int(WAIT_S)
    NotebookClient(
        notebook,
        kernel_name="python3",
        resources=kernel,
        timeout=2 * seconds,
        startup_timeout=seconds,
        iopub_timeout=seconds,
        raise_on_iopub_timeout=True,
    ).execute()
    holdings, table, plot, result = (found for cell in notebook.cells if (found := shown(cell)))
    assert "<svg" in holdings["text/html"]
    accuracies = [float(found) for found in re.findall(r"<td>(0\.\d+) ±", table["text/html"])]
    assert len(accuracies) == 6
    assert min(accuracies) > 0.5  # chance is 0.1
    assert "image/png" in plot
    assert "12 of 12 rounds released" in result["text/html"]
    bars = [bar for cell in notebook.cells if (bar := bar_of(cell))]
    assert [bar.partition(">")[0] for bar in bars] == [
        '<progress value="144" max="144"',
        '<progress value="12" max="12"',
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs] == []
