"""The demonstration with fewer processes: a good accuracy, and nothing left afterwards.

Its processes are forks (``tests.system.forker``), but for the last test, which starts them as a newcomer does.
``make dist-check`` runs it as it is without options.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.demos import assert_ctrl_c_leaves_nothing, left_over, report_of
from tests.system.forked import run_forked
from tests.system.processes import ATOLL

pytestmark = pytest.mark.system


def played(tmp_path: Path, *options: str) -> dict[str, Any]:
    """Run the demonstration in forks to its end; returns what it prints as JSON."""
    words = (*ATOLL, "demo", "--json", "--report", str(tmp_path / "report.html"), *options)
    done = run_forked("server", words, tmp_path, {"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_it_learns_the_digits_and_leaves_only_its_report(tmp_path: Path) -> None:
    result = played(tmp_path, "--clients", "3", "--rounds", "10")
    assert result["status"] == "finished"
    assert (result["rounds"], result["clients"]) == (10, 3)
    assert result["accuracy"] >= 0.95
    assert "<svg" in report_of(tmp_path)
    assert left_over(tmp_path) == []


def test_with_privacy_the_budget_and_both_accuracies_are_told(tmp_path: Path) -> None:
    result = played(tmp_path, "--private", "--clients", "30", "--rounds", "5")
    assert (result["status"], result["rounds"], result["charges"], result["clients"]) == ("finished", 5, 5, 30)
    assert 7.9 < result["epsilon"] <= 8.0
    assert result["delta"] == 1e-5
    assert result["plain_accuracy"] > 0.85
    assert 0.3 < result["accuracy"] < 1.0  # about 0.8, below the other in most draws; chance is 0.1
    assert "epsilon 7.99" in (tmp_path / "report.html").read_text()
    assert left_over(tmp_path) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    rounds = "5000"  # far from done, however late the signal comes
    assert_ctrl_c_leaves_nothing(tmp_path, "demo", "--clients", "2", "--rounds", rounds)
