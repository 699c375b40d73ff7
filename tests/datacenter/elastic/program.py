"""What each rank of a launched test job runs: the small job, checkpoints, a watch. ``python -m … JOB.toml``.

Prints ``step N LOSS`` on rank 0. ``HOLD=RANK:STEP:FILE``: before that step, that rank makes the file and waits for its
end: a test then does with the process what it wants.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from atoll.datacenter.elastic.rank import run_rank
from atoll.datacenter.elastic.watch import Watch
from atoll.datacenter.job import load_job
from atoll.datacenter.mesh import join_world
from tests.datacenter.checkpoint.going_on import Run


def main() -> None:
    path = Path(sys.argv[1])
    job = load_job(path)
    with join_world(job.faults.collective_timeout_s) as world, Watch(world, job.faults.collective_timeout_s) as watch:
        run = Run.start(job, str(path.parent), world)
        step = run.checkpoints.resume(run.state) or 0
        while step < job.job.steps:
            hold(world.rank, step)
            watch.enter(step + 1, "training")
            loss = run.until(step + 1)[0]
            step += 1
            if world.is_first:
                sys.stdout.write(f"step {step} {loss:.9f}\n")
            if watch.stops_after(step):
                break
        watch.enter(step, "last checkpoint")
        run.checkpoints.save(step, run.state)
        watch.ended("finished" if step == job.job.steps else "stopped", step)


def hold(rank: int, step: int) -> None:
    """Stand still for ever where a test wants it, once."""
    wanted = os.environ.get("HOLD", "")
    if not wanted:
        return
    who, when, place = wanted.split(":")
    if (rank, step) == (int(who), int(when)) and not Path(place).exists():
        Path(place).write_text(str(os.getpid()), encoding="utf-8")
        threading.Event().wait()


if __name__ == "__main__":
    run_rank(main)
