"""``atoll stats`` over a real server and four hospitals, each in a separate process."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn import datasets

from atoll.statistics import Findings
from tests.patience import WAIT_S
from tests.system.conftest import Hire, Serve
from tests.system.processes import ATOLL
from tests.system.servers import Server

pytestmark = pytest.mark.system
EXAMPLE = Path(__file__).parents[2] / "examples" / "table_client.py"
COLUMNS = ("mean radius", "mean texture")
JOB = """
[job]
name = "overview"

[cohort]
size = 4

[statistics]
numeric = ["mean radius", "mean texture"]
categories = { label = ["0", "1"] }
"""


def written(folder: Path) -> npt.NDArray[Any]:
    """Breast cancer's rows, sorted by class over four files; the pooled rows."""
    found = datasets.load_breast_cancer()
    order = np.argsort(found.target, kind="stable")
    rows = np.column_stack([found.data[:, :2], found.target])[order]
    for number, part in enumerate(np.array_split(rows, 4)):
        header = ",".join((*COLUMNS, "label"))
        np.savetxt(folder / f"{number}.csv", part, delimiter=",", header=header, comments="", fmt="%.17g")
    return rows


def stats(server: Server, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    job = folder / "job.toml"
    job.write_text(JOB)
    command = [*ATOLL, "stats", str(job), "--data", str(server.data), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_figures_of_four_processes_are_those_of_the_pooled_rows(serve: Serve, hire: Hire, tmp_path: Path) -> None:
    rows = written(tmp_path)
    server, kept, sheet = serve("hospitals"), tmp_path / "found.json", tmp_path / "found.csv"
    crew = hire(server)
    for number in range(4):
        client = crew.add("Steady", f"--arg=file={tmp_path / f'{number}.csv'}")
        client.behaviour = f"{EXAMPLE}:Hospital"
        client.start()
    done = stats(server, tmp_path, "--json", "-o", str(kept), "--csv", str(sheet))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(kept.read_text())
    found = Findings.load(kept)
    assert (found.participants, found.rows) == (4, len(rows))
    for column, values in zip(found.numeric, rows.T, strict=False):
        assert column.mean == pytest.approx(values.mean(), rel=1e-12)
        assert column.deviation == pytest.approx(values.std(ddof=1), rel=1e-12)
        for quantile in column.quantiles:
            assert quantile.low is not None
            assert quantile.high is not None
            assert quantile.low <= np.quantile(values, quantile.share, method="inverted_cdf") <= quantile.high
    # Malignant rows are at two hospitals only, too few; benign ones would give their number away.
    assert found.categories[0].counts == {"0": None, "1": None}
    with sheet.open(newline="") as file:
        means = [float(row["value"]) for row in csv.DictReader(file) if row["figure"] == "mean"]
    assert means == [column.mean for column in found.numeric]
