"""The program of each rank of a launched test job: the trainer, held where a test asks. ``python -m … JOB.toml``.

``HOLD=RANK:STEP:FIFO …``: before that step, that rank writes its process id into the fifo, if it exists, and stops
until a signal comes; step 0: before the ranks have met, when signals still end them. RANK is a number, ``any``, or
``alone`` for the rank of a world of one. ``FAIL=RANK:STEP``: before that step, that rank raises. ``SILENT``: no rank
reports how the job ended. ``LATE=SECONDS``: the watch ends a rank whose collective is late, as on GPUs, and the back
end does not.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from atoll.datacenter.elastic.rank import run_rank
from atoll.datacenter.elastic.watch import Watch
from atoll.datacenter.job import load_job
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.trainer import train


@dataclass
class Held:
    """A watch that obeys ``HOLD`` and ``FAIL``."""

    watch: Watch
    rank: int

    def enter(self, step: int, phase: str) -> None:
        self.watch.enter(step, phase)
        if phase != "data":
            return
        if os.environ.get("FAIL") == f"{self.rank}:{step}":
            raise ZeroDivisionError("as the test wants it")
        hold_up(self.rank, step)

    def stops_after(self, step: int) -> bool:
        return self.watch.stops_after(step)

    def stopping(self) -> bool:
        return self.watch.stopping()


def hold_up(rank: int, step: int) -> None:
    """Stop here if the test asks for it."""
    names = {"any", str(rank), "alone" if os.environ["WORLD_SIZE"] == "1" else ""}
    for hold in os.environ.get("HOLD", "").split():
        who, when, fifo = hold.split(":")
        if who in names and when == str(step) and Path(fifo).exists():
            until_signalled(Path(fifo))


def until_signalled(fifo: Path) -> None:
    """Report the held process. A signal that comes before this thread waits is not missed, whichever thread gets it."""
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    with woken, waking:
        before = signal.set_wakeup_fd(waking.fileno())
        try:
            with fifo.open("w", encoding="utf-8") as pipe:
                pipe.write(str(os.getpid()))
            woken.recv(1)
        finally:
            signal.set_wakeup_fd(before)


def main() -> None:
    path = Path(sys.argv[1])
    job = load_job(path)
    timeout_s = job.faults.collective_timeout_s
    hold_up(int(os.environ["RANK"]), 0)
    late_s = float(os.environ.get("LATE", "0"))
    limit_s = late_s or timeout_s
    with join_world(timeout_s) as world, Watch(world, limit_s, ends_late=bool(late_s)) as watch:
        summary = train(job, path.parent, world, Held(watch, world.rank))
        if "SILENT" not in os.environ:
            watch.ended("finished" if summary.finished else "stopped", summary.steps)


if __name__ == "__main__":
    run_rank(main)
