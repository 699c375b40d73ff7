"""The program of each rank: ``torchrun --nproc-per-node 4 -m atoll.datacenter.train JOB.toml``, or under Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.datacenter.elastic.rank import run_rank
from atoll.datacenter.elastic.watch import Watch
from atoll.datacenter.job import load_job
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.asynchrony import train_asynchronously
from atoll.datacenter.train.trainer import train


def main() -> None:
    """Train the job that the command line names."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m atoll.datacenter.train JOB.toml")
    path = Path(sys.argv[1])
    job = load_job(path)
    timeout_s = job.faults.collective_timeout_s
    with join_world(timeout_s, on_host=job.data_parallel.cpu_offload) as world, Watch(world, timeout_s) as watch:
        run = train if job.asynchrony is None else train_asynchronously
        summary = run(job, path.parent, world, watch)
        watch.ended("finished" if summary.finished else "stopped", summary.steps)


if __name__ == "__main__":
    run_rank(main)
