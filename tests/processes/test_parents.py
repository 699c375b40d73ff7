from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.patience import WAIT_S

PROGRAM = """
import os, signal, sys, time
from atoll.processes.parents import end_with_parent

parent = os.getpid()
if os.fork() == 0:
    end_with_parent(parent)
    print("ready", flush=True)
    signal.pause()
signal.pause()
"""


def test_a_fork_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        assert process.stdout.read() == b""  # the fork had the pipe too
