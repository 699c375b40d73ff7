"""The demonstration of silos as a newcomer runs it, shortened: real processes, a falling loss, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

DEMO = [sys.executable, "-c", "from atoll.client.cli import main; main()", "silo", "demo"]


def demo(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [*DEMO, "--report", str(tmp_path / "report.html"), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_over(tmp_path: Path) -> list[str]:
    """Processes that name the demo's temporary folder, and folders that it left."""
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    running = [" ".join(command) for command in commands if any(str(tmp_path) in part for part in command)]
    return running + [str(path) for path in tmp_path.iterdir() if path.name != "report.html"]


def test_silos_and_clients_learn_together_and_leave_only_the_report(tmp_path: Path) -> None:
    process = demo(tmp_path, "--json", "--rounds", "3", "--inner-steps", "8")
    out, err = process.communicate(timeout=240)
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
    page = (tmp_path / "report.html").read_text()
    assert "loss by bytes sent" in page
    assert "http" not in page.replace("http://www.w3.org/", ""), "the report must not need the network"
    assert left_over(tmp_path) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    process = demo(tmp_path, "--rounds", "500", "--inner-steps", "4")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round 1/"):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert left_over(tmp_path) == []
