"""Forked processes have the same environment as started ones."""

import os
import sys
from pathlib import Path

import pytest

from tests.patience import WAIT_S
from tests.system.forked import Forked

pytestmark = pytest.mark.system

SCRIPT = """
import atexit, os, sys
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]

def closed(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False

atexit.register(lambda: print("closed:", [one for one in opened if closed(one)], flush=True))
sys.exit(5)
"""


def test_what_it_opened_is_its_own_until_it_ends(tmp_path: Path) -> None:
    """The process has reused the descriptor of the forker's socket for a file: closing it would close the file."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = Forked("server", [sys.executable, str(script)], 2, os.environ, tmp_path)
    assert process.wait(WAIT_S) == 5
    assert process.stdout is not None
    assert process.stdout.read() == "closed: []\n"
