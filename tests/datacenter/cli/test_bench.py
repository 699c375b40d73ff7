"""``atoll silo bench`` as typed: torchrun, two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.client.cli.app import run_cli
from atoll.datacenter.machine import load_rates
from atoll.datacenter.machine.cost import COLLECTIVES
from tests.patience import WAIT_S

START = "import sys; from atoll.client.cli.app import run_cli; sys.exit(run_cli(sys.argv[1:]))"


@pytest.mark.ranks
def test_rates_are_measured_on_two_processes_printed_and_kept(tmp_path: Path) -> None:
    out, temporary = tmp_path / "rates.json", tmp_path / "temporary"
    temporary.mkdir()
    arguments = ("silo", "bench", "--nproc", "2", "--smoke", "--max-mb", "0.001", "--out", str(out), "--json")
    done = subprocess.run(
        [sys.executable, "-c", START, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stderr
    assert not list(temporary.iterdir())
    found = json.loads(done.stdout)
    assert found["rates"] == load_rates(out).model_dump()
    assert {point["collective"] for point in found["collectives"]["intra"]} == set(COLLECTIVES)
    assert all(point["measured_by_model"]["ring"] > 0 for point in found["collectives"]["intra"][:2])


def test_no_processes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["silo", "bench", "--nproc", "0"]) == 2
    assert "--nproc" in capsys.readouterr().err
