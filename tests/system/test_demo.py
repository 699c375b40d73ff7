"""The demonstration as a newcomer runs it: nine processes, an accuracy worth having, and nothing left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

DEMO = [sys.executable, "-c", "from atoll.client.cli import main; main()", "demo"]


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


def test_it_learns_the_digits_and_leaves_only_its_report(tmp_path: Path) -> None:
    process = demo(tmp_path, "--json")
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert result["status"] == "finished"
    assert result["rounds"] == 20
    assert result["clients"] == 8
    assert result["accuracy"] >= 0.95
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/", ""), "the report must not need the network"
    assert left_over(tmp_path) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    process = demo(tmp_path, "--rounds", "5000")  # far from done, however late the signal comes
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round 1/"):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert left_over(tmp_path) == []
