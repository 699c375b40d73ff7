"""``atoll silo bench`` as typed: it starts two processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.client.cli.app import run_cli
from atoll.datacenter.machine import load_rates
from atoll.datacenter.machine.cost import COLLECTIVES
from tests.system.forked import run_forked
from tests.system.processes import ATOLL


@pytest.mark.ranks
def test_rates_are_measured_on_two_processes_printed_and_kept(tmp_path: Path) -> None:
    out, temporary = tmp_path / "rates.json", tmp_path / "temporary"
    temporary.mkdir()
    options = ("--nproc", "2", "--smoke", "--max-mb", "0.001", "--out", str(out), "--json")
    done = run_forked("silo", (*ATOLL, "silo", "bench", *options), tmp_path, {"TMPDIR": str(temporary)})
    assert done.returncode == 0, done.stderr
    assert not list(temporary.iterdir())
    found = json.loads(done.stdout)
    assert found["rates"] == load_rates(out).model_dump()
    assert {point["collective"] for point in found["collectives"]["intra"]} == set(COLLECTIVES)
    assert all(point["measured_by_model"]["ring"] > 0 for point in found["collectives"]["intra"][:2])


@pytest.mark.ranks
def test_a_measurement_that_fails_ends_the_command_with_the_reason(tmp_path: Path) -> None:
    """The first process cannot write the rates: the folder does not exist."""
    options = ("--nproc", "2", "--smoke", "--max-mb", "0.001", "--out", str(tmp_path / "none" / "rates.json"))
    done = run_forked("silo", (*ATOLL, "silo", "bench", *options), tmp_path)
    assert done.returncode == 1
    assert "none/rates.json" in done.stderr
    assert done.stderr.rstrip().endswith("the measurement ended with exit code 1; the reason is printed above")


def test_no_processes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["silo", "bench", "--nproc", "0"]) == 2
    assert "--nproc" in capsys.readouterr().err
