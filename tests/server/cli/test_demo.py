"""The demo's shell; the whole demo with real processes is tests/system/test_demo.py."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from atoll.processes import demonstration
from atoll.server.cli.demo import Summary, _show, _summary, demo
from atoll.server.control import RoundSummary, RunDetail, RunSummary
from atoll.server.demo.federation import Plan

if TYPE_CHECKING:
    from pathlib import Path

PLAN = Plan(clients=2, rounds=2, seed=1)


def detail(status: str = "finished") -> RunDetail:
    rounds = tuple(
        RoundSummary(
            number, 0, "train", "released", "", 2, 2, 1, 2, 9, 10.0, 10.5, None, {"server/accuracy": 0.9}, (), number
        )
        for number in range(2)
    )
    return RunDetail(RunSummary("rabc", "digits", status, "", 2, 2, 5.0, 12.0, ""), rounds, 2, "")


def test_the_summary_is_of_the_final_model(tmp_path: Path) -> None:
    found = _summary(detail(), PLAN, tmp_path / "r.html", None, 20.0)
    assert (found.accuracy, found.loss, found.median_round_s, found.training_s) == (0.9, None, 0.5, 7.0)
    assert (found.rounds, found.clients, found.kept) == (2, 2, None)


def test_the_summary_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = _summary(detail(), PLAN, tmp_path / "r.html", tmp_path, 20.0)
    _show(found, json_output=False)
    assert "0.9000" in capsys.readouterr().out
    _show(found, json_output=True)
    assert Summary(**json.loads(capsys.readouterr().out)) == found


def test_a_folder_with_files_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    result = CliRunner().invoke(demo, ["--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == f"Error: --keep {tmp_path} is not empty\nWhat to do: name a new directory\n"


def test_a_server_that_cannot_start_is_shown_with_its_log_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demonstration, "ATOLL", (sys.executable, "-c", "raise SystemExit('no room on the disk')"))
    result = CliRunner().invoke(demo, ["--clients", "2", "--report", str(tmp_path / "report.html")])
    assert result.exit_code == 1
    assert "server ended with exit code 1" in result.stderr
    assert "  | no room on the disk" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--clients", "0"], ["--rounds", "0"], ["--port", "65535"]])
def test_impossible_plans_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(demo, arguments).exit_code == 2


def test_more_processes_than_a_machine_bears_are_refused() -> None:
    result = CliRunner().invoke(demo, ["--clients", "100"])
    assert result.exit_code == 2
    assert "at most 64 processes" in result.stderr
