"""What each rank runs: ``torchrun --nproc-per-node 4 -m atoll.datacenter.train JOB.toml``, or the like under Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.datacenter.job import load_job
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import train


def main() -> None:
    """Train the job that the command line names."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m atoll.datacenter.train JOB.toml")
    path = Path(sys.argv[1])
    job = load_job(path)
    with join_world(job.faults.collective_timeout_s) as world:
        train(job, path.parent, world, Unwatched())


if __name__ == "__main__":
    main()
