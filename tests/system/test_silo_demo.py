"""The demonstration of silos, shortened: many processes, a falling loss, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.demos import assert_ctrl_c_leaves_nothing, left_over, report_of
from tests.system.forked import run_forked
from tests.system.forker import LOADED
from tests.system.processes import ATOLL

pytestmark = pytest.mark.system


def test_silos_and_clients_learn_together_and_leave_only_the_report(tmp_path: Path) -> None:
    """Its processes and commands are forks, but for ``run watch``; the next test runs them as a newcomer."""
    env = {"TMPDIR": str(tmp_path), "MORE_LOADED": " ".join((*LOADED["server"], "atoll.server.report"))}
    options = ("--json", "--rounds", "2", "--inner-steps", "8", "--report", str(tmp_path / "report.html"))
    done = run_forked("silo", (*ATOLL, "silo", "demo", *options), tmp_path, env)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["status"], result["rounds"], result["participants"]) == ("finished", 2, 4)
    assert len(result["losses"]) == 3
    assert result["losses"][-1] < 0.8 * result["losses"][0]
    model_bytes = 4 * result["parameters"]
    assert result["encoding"] == "int8"
    expected = 2 * 4 * model_bytes * 8.25 / 32
    assert expected <= result["sent_bytes"] < 1.02 * expected, "four updates a round, and little else"
    assert result["plain_bytes"] == 2 * 8 * 2 * 3 * model_bytes
    assert result["sample"].startswith("def ")
    assert "loss by bytes sent" in report_of(tmp_path)
    assert left_over(tmp_path) == []


@pytest.mark.every_fault
@pytest.mark.parametrize("after", ["before training", "[1/"])
def test_ctrl_c_leaves_nothing(tmp_path: Path, after: str) -> None:
    """Ctrl-C just after its processes were started, or during training; ``test_demo`` always interrupts one."""
    assert_ctrl_c_leaves_nothing(tmp_path, "silo", "demo", "--rounds", "500", "--inner-steps", "4", after=after)
