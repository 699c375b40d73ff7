"""``atoll new study`` for each framework: the commands of the study's README, as they stand there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.formats.arrays import load
from atoll.operator import Operator
from tests.system.forked import run_forked
from tests.system.processes import ATOLL, nursery
from tests.system.servers import serving
from tests.system.studies import Page, shell

pytestmark = pytest.mark.system


def begun(folder: Path, framework: str) -> Page:
    """A new study in the folder ``wards``, made by a fork, and its README."""
    done = run_forked("server", (*ATOLL, "new", "study", "wards", "--framework", framework), folder)
    assert done.returncode == 0, done.stderr
    return Page((folder / "wards" / "README.md").read_text(encoding="utf-8"))


FURTHER = [pytest.param(name, marks=pytest.mark.every_study) for name in ("sklearn", "torch")]


@pytest.mark.parametrize("framework", ["numpy", *FURTHER])
def test_it_simulates_as_its_readme_says(framework: str, tmp_path: Path) -> None:
    (commands,) = begun(tmp_path, framework).blocks("## 1. Simulate")
    folder = tmp_path / "wards"
    printed = shell(commands, folder)
    assert (folder / "simulated" / "report.html").exists()
    assert printed.count("finished after") == 2
    assert "rows of 3 participants" in printed
    first, last = load(folder / "initial.safetensors"), load(folder / "simulated" / "model.safetensors")
    assert max(float(np.abs(last[name] - first[name]).max()) for name in first) > 0.05


@pytest.mark.parametrize("framework", ["numpy", *FURTHER])
def test_it_trains_over_processes_as_its_readme_says(framework: str, tmp_path: Path) -> None:
    starts, commands = begun(tmp_path, framework).blocks("## 2. A server")
    assert starts.split() == ["atoll", "server", "start", "--data", "federation"]
    folder = tmp_path / "wards"
    with nursery(folder) as processes, serving(processes, "federation") as server:
        printed = shell(commands, folder)
        with Operator.connect(data=server.data) as operator:
            losses = operator.run("latest").history().metric("eval/loss")
    assert "round 20 released, 3 of 3 reported" in printed
    assert [path.name for path in sorted(folder.glob("site-*"))] == ["site-1", "site-2", "site-3"]
    assert losses[-1] < losses[0]
    assert load(folder / "model.safetensors").keys() == load(folder / "initial.safetensors").keys()
