"""``atoll server start`` says what it is doing, and when it serves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import WAIT_S

pytestmark = pytest.mark.slow

ATOLL = "from atoll.client.cli import main; main()"


def test_it_says_what_it_does_and_when_it_is_ready(tmp_path: Path) -> None:
    data = tmp_path / "federation"
    options = ["--data", str(data), "--port", "0", "--enrol-port", "0", "--no-metrics"]
    command = [sys.executable, "-c", ATOLL, "server", "start", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if line.startswith("serving on "):
                break
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT_S) == 0
    assert f"starting a server on the data directory {data}" in said[0]
    assert "opening the database" in said[1]
    assert any("active runs: 0; opening the ports" in line for line in said)
    assert said[-1].startswith("serving on 127.0.0.1:")
