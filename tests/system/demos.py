"""Runs demonstrations like a newcomer, and checks what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil

from atoll.processes.demonstration import ATOLL
from tests.patience import WAIT_S


def demo(tmp_path: Path, *command: str) -> subprocess.Popen[str]:
    """Run ``atoll`` with this command, with its temporary files and report in this folder."""
    return subprocess.Popen(
        [*ATOLL, *command, "--report", str(tmp_path / "report.html")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def report_of(tmp_path: Path) -> str:
    """The page, which must not need the network."""
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http://www.w3.org/", "")
    return page


def left_over(tmp_path: Path) -> list[str]:
    """Processes that name the demo's temporary folder or write to a log there, and folders that it left."""
    running = [process.info for process in psutil.process_iter(["pid", "cmdline"])]
    named = [" ".join(info["cmdline"] or ()) for info in running]
    logs = [_output_of(info["pid"]) for info in running]
    found = [words for words in named + logs if str(tmp_path) in words]
    return found + [str(path) for path in tmp_path.iterdir() if path.name != "report.html"]


def _output_of(pid: int) -> str:
    """Path of the file that a process has as standard output, which it keeps when the file is removed."""
    try:
        return str(Path(f"/proc/{pid}/fd/1").readlink())
    except OSError:  # it has ended, or is another user's
        return ""


def assert_ctrl_c_leaves_nothing(tmp_path: Path, *command: str, after: str = "[1/") -> None:
    """Interrupt it after the line with these characters, which is its first round of many."""
    process = demo(tmp_path, *command)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if after in line:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    finally:
        process.terminate()  # a demonstration that has not ended stops its processes
    assert process.returncode == 128 + signal.SIGINT
    assert left_over(tmp_path) == []
