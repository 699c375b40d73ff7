"""The folders of simulations without a folder end with their process, however that ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import WAIT_S

PROGRAM = """
import os
import sys
from pathlib import Path

from atoll.simulation import Cohort, Federation, Job, temporary
from tests.simulation.test_federation import MODEL, Stepping

temporary.MEMORY, temporary.LEAST_MEMORY_BYTES = Path(sys.argv[1]), 0
workers, waits = int(sys.argv[2]), sys.argv[3] == "waits"

class Waiting(Stepping):
    def fit(self, model, task):
        if waits:
            os.write(1, b"working\\n")  # one write: lines of two workers do not mix
            input()
        return super().fit(model, task)

job = Job(rounds=1, cohort=Cohort(size=2))
result = Federation(participants=Waiting, population=2).run(job, initial=MODEL, workers=workers)
"""


def begun(folder: Path, workers: int, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), str(workers), how]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[2])


def await_end(process: int) -> None:
    """Wait for the end of a process that is no child of this one."""
    readable, _, _ = select.select([process], [], [], WAIT_S)
    assert readable, "the process goes on"
    os.close(process)


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.every_fault), 2])
def test_a_simulation_that_is_killed_leaves_nothing_in_memory(tmp_path: Path, workers: int) -> None:
    with begun(tmp_path, workers, "waits") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        (base,) = tmp_path.iterdir()
        assert list(base.iterdir())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 1 + workers
        descriptors = [os.pidfd_open(int(child)) for child in children]
        os.kill(process.pid, signal.SIGKILL)
        for descriptor in descriptors:
            await_end(descriptor)
        assert list(tmp_path.iterdir()) == []


def test_a_script_that_ends_with_its_result_leaves_nothing_either(tmp_path: Path) -> None:
    with begun(tmp_path, 0, "goes on") as process:
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert process.wait(WAIT_S) == 0
    shells = [one for one in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(one)]
    for shell in shells:
        try:
            await_end(os.pidfd_open(int(shell.parent.name)))
        except ProcessLookupError:  # it has ended meanwhile
            continue
    assert list(tmp_path.iterdir()) == []


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b""
