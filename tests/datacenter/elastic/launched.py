"""``atoll silo train`` as a separate process, whose ranks a test can hold; all are forked (``tests.system.forker``)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.datacenter.checkpoint.folder import step_folder
from atoll.datacenter.checkpoint.manifest import read_manifest
from tests.patience import WAIT_S
from tests.system.forked import Forked

ROOT = Path(__file__).parents[3]
_STARTER = Path(__file__).with_name("train_with.py")
JOB = """
[job]
name = "small"
steps = 8
seed = 7
[model]
layers = 2
dim = 32
heads = 4
ffn_dim = 64
[batch]
sequence = 16
global_batch = 12
micro_batch = 2
[data_parallel]
method = "zero3"
[checkpoint]
folder = "kept"
every_steps = 2
[faults]
collective_timeout_s = {timeout_s}
[metrics]
every_steps = 1
"""


@dataclass
class Launched:
    """A running command.

    Attributes:
        process: of the command.
        lines: lines printed so far, including rank 0's progress.
        times: time of each line, on the monotonic clock.
        changed: notified of each line.
        all_read: set once there are no more lines.
    """

    process: Forked
    lines: list[str]
    times: list[float]
    changed: threading.Condition = field(default_factory=threading.Condition)
    all_read: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        """Wait until the command has ended."""
        for line in self.process.stdout or ():
            with self.changed:
                self.times.append(time.monotonic())
                self.lines.append(line)
                self.changed.notify_all()
        self.all_read.set()

    def until(self, text: str, times: int = 1) -> None:
        """Wait until this many lines have the text."""
        with self.changed:
            found = self.changed.wait_for(lambda: sum(text in line for line in self.lines) >= times, WAIT_S)
        assert found, f"{text!r} did not come {times} times:\n{self.said}"

    def wait(self) -> int:
        """Return the exit code, once the command has ended and all that it and its ranks printed was read."""
        code = self.process.wait(WAIT_S)
        assert self.all_read.wait(WAIT_S), "a rank outlived the command"
        return code

    @property
    def said(self) -> str:
        return "".join(self.lines)

    @property
    def outcome(self) -> dict[str, Any]:
        """Return the last report of how the job ended."""
        found: dict[str, Any] = json.loads([line for line in self.lines if line.startswith("{")][-1])
        return found


def write_job(folder: Path, timeout_s: float = 60.0) -> Path:
    folder.mkdir(exist_ok=True)
    job = folder / "job.toml"
    job.write_text(JOB.format(timeout_s=timeout_s), encoding="utf-8")
    return job


@contextmanager
def launched(
    job: Path, *options: str, module: str = "tests.datacenter.elastic.program", **environment: str
) -> Iterator[Launched]:
    """Run ``atoll silo train JOB --json`` with options and a program of the ranks; ends with the context.

    What it printed is printed at the end, so that a failed test shows it.
    """
    rooms = [str(ROOT / room) for room in ("protos", "common", "client", "server", "datacenter", "")]
    process = Forked(
        "silo",
        (sys.executable, str(_STARTER), module, str(job), "--json", *options),
        subprocess.STDOUT,
        os.environ | {"PYTHONPATH": os.pathsep.join(rooms), "OMP_NUM_THREADS": "1"} | environment,
        Path.cwd(),
    )
    assert process.stdout is not None
    found = Launched(process, [], [])
    reader = threading.Thread(target=found.read)
    reader.start()
    try:
        yield found
    finally:
        process.kill()
        process.wait()
        reader.join(WAIT_S)
        sys.stdout.write(found.said)
        assert not reader.is_alive(), "a rank outlived the command"
        process.close()


class Hold:
    """Holds a rank at a step: pass ``variable`` to the command, then ``wait`` for the rank.

    Args:
        fifo: created here; removed once a rank was held, so that the next attempt is not held.
    """

    def __init__(self, fifo: Path, rank: int | str, step: int) -> None:
        os.mkfifo(fifo)
        self._fifo = fifo
        self.variable = f"{rank}:{step}:{fifo}"

    def wait(self) -> int:
        """Return the process that is held."""
        with self.allowed() as descriptor:
            ready, _, _ = select.select([descriptor], [], [], WAIT_S)
            assert ready, "no rank was held up"
            self._fifo.unlink()
            return int(os.read(descriptor, 32))

    @contextmanager
    def allowed(self) -> Iterator[int]:
        """Allow ranks to be held and woken during the context; gives the descriptor that they write to."""
        descriptor = os.open(self._fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def end(self) -> None:
        """Hold no further rank."""
        self._fifo.unlink()


def tensors_of(folder: Path, step: int) -> dict[str, str]:
    """Return digests of a checkpoint's files: equal if every bit of the state is equal."""
    manifest = read_manifest(step_folder(folder / "kept", step))
    return {name: record.digest for name, record in manifest.files.items()}
