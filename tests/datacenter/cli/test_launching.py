"""``--layout auto``: the ranks start with a job file in which the chosen layout is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from atoll.datacenter.cli import launching
from atoll.datacenter.cli.train import train
from atoll.datacenter.elastic.launch import Report
from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.models import spec_of
from atoll.datacenter.plan.automatic import choose_layout
from atoll.datacenter.plan.step_time import Machine

JOB = """
[job]
name = "small"
steps = 8
[model]
layers = 2
dim = 32
heads = 4
[optimiser]
lr = 1e-3
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def test_a_chosen_layout_is_written_beside_the_job_and_trained(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[SiloJob, Path]] = []

    def launched(job: SiloJob, command: Sequence[str], *_: Any) -> Report:
        started.append((job, Path(command[2])))
        return Report("finished", step=8, restarts=0, seconds=1.0, exit_code=0)

    monkeypatch.setattr(launching, "launch", launched)
    done = CliRunner().invoke(train, [str(job), "--nproc", "4", "--layout", "auto"])
    assert done.exit_code == 0, done.output
    [(planned, file)] = started
    assert file == job.with_suffix(".planned.toml")
    written, machine = load_job(job), Machine.of(DATA_SHEETS["h100"])
    assert planned == load_job(file) == choose_layout(written, spec_of(written.model), 4, machine).job
    assert f"written to {file}" in done.output
    assert job.read_text(encoding="utf-8") == JOB


def test_a_number_of_machines_that_changes_is_refused(job: Path) -> None:
    done = CliRunner().invoke(train, [str(job), "--nnodes", "1:2", "--meet", "h:1", "--layout", "auto"])
    assert done.exit_code == 2
    assert "--layout auto needs a fixed number of machines, not --nnodes 1:2" in done.output
