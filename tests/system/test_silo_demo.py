"""The demonstration of silos as a newcomer runs it, shortened: real processes, a falling loss, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.patience import WAIT_S
from tests.system.demos import assert_ctrl_c_leaves_nothing, demo, left_over, report_of

pytestmark = pytest.mark.system


def test_silos_and_clients_learn_together_and_leave_only_the_report(tmp_path: Path) -> None:
    process = demo(tmp_path, "silo", "demo", "--json", "--rounds", "3", "--inner-steps", "8")
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["status"], result["rounds"], result["participants"]) == ("finished", 3, 4)
    assert len(result["losses"]) == 4
    assert result["losses"][-1] < 0.8 * result["losses"][0]
    model_bytes = 4 * result["parameters"]
    assert result["encoding"] == "int8"
    expected = 3 * 4 * model_bytes * 8.25 / 32
    assert expected <= result["sent_bytes"] < 1.02 * expected, "four updates a round, and little else"
    assert result["plain_bytes"] == 3 * 8 * 2 * 3 * model_bytes
    assert result["sample"].startswith("def ")
    assert "loss by bytes sent" in report_of(tmp_path)
    assert left_over(tmp_path) == []


@pytest.mark.every_fault
@pytest.mark.parametrize("after", ["before training", "[1/"])
def test_ctrl_c_leaves_nothing(tmp_path: Path, after: str) -> None:
    """Ctrl-C just after its processes were started, or during training; ``test_demo`` always interrupts one."""
    assert_ctrl_c_leaves_nothing(tmp_path, "silo", "demo", "--rounds", "500", "--inner-steps", "4", after=after)
