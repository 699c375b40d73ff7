"""Forked processes have the same environment as started ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import WAIT_S
from tests.system.forked import Forked

pytestmark = pytest.mark.system

SCRIPT = """
import atexit, os, sys, time
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]

def closed(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False

atexit.register(lambda: print("closed:", [one for one in opened if closed(one)], flush=True))
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
sys.exit(5)
"""

LEFT = """
import atexit, threading, time
print("buffered")
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""


def test_what_it_opened_is_its_own_until_it_ends(tmp_path: Path) -> None:
    """The process has reused the descriptor of the forker's socket for a file: closing it would close the file."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = Forked("server", [sys.executable, str(script)], 2, os.environ, tmp_path)
    assert process.wait(WAIT_S) == 5
    assert process.stdout is not None
    assert process.stdout.read() == "closed: []\n"
    assert 0.2 <= process.processor_s < WAIT_S
    assert process.peak_kib > 1000


@pytest.mark.parametrize(
    ("script", "code", "last"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no such model')", 1, "no such model"),
        ("raise ValueError('too large')", 1, "ValueError: too large"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ],
)
def test_it_ends_as_python_does(script: str, code: int, last: str, tmp_path: Path) -> None:
    """Also what the script left to its exit functions, to a thread and to a buffer is done."""
    (tmp_path / "script.py").write_text(f"{LEFT}\n{script}\n")
    process = Forked("server", [sys.executable, str(tmp_path / "script.py")], subprocess.STDOUT, os.environ, tmp_path)
    assert process.wait(WAIT_S) == code
    assert process.stdout is not None
    said = process.stdout.read()
    assert last in said
    if code >= 0:
        assert set(said.splitlines()) >= {"buffered", "thread", "exit function"}
