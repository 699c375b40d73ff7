"""``atoll silo bench`` as typed: torchrun starts two processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.client.cli.app import run_cli
from atoll.datacenter.machine import load_rates
from atoll.datacenter.machine.cost import COLLECTIVES


@pytest.mark.ranks
def test_rates_are_measured_on_two_processes_printed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out, temporary = tmp_path / "rates.json", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    arguments = ["silo", "bench", "--nproc", "2", "--smoke", "--max-mb", "0.001", "--out", str(out), "--json"]
    code = run_cli(arguments)
    said, errors = capfd.readouterr()
    assert code == 0, errors
    assert not list(temporary.iterdir())
    found = json.loads(said)
    assert found["rates"] == load_rates(out).model_dump()
    assert {point["collective"] for point in found["collectives"]["intra"]} == set(COLLECTIVES)
    assert all(point["measured_by_model"]["ring"] > 0 for point in found["collectives"]["intra"][:2])


def test_no_processes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["silo", "bench", "--nproc", "0"]) == 2
    assert "--nproc" in capsys.readouterr().err
