"""Ports of tests belong to one of them, also while its server is down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import WAIT_S
from tests.ports import free_ports

TRIES = "import sys; from tests.ports import _reserved; print(*map(_reserved, map(int, sys.argv[1:])))"


def test_no_other_process_gets_them_while_this_one_runs() -> None:
    first, second = free_ports(), free_ports()
    assert first != second
    words = [sys.executable, "-c", TRIES, str(first), str(second), "19996"]
    root = Path(__file__).parents[1]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout == "False False True\n"
