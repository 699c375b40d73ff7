"""The program of each rank: ``torchrun --nproc-per-node 4 -m atoll.datacenter.train JOB.toml``, or under Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.datacenter.elastic.rank import run_rank
from atoll.datacenter.elastic.replicas.link import Ticket
from atoll.datacenter.elastic.replicas.member import Member, OverError
from atoll.datacenter.elastic.watch import Watch
from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.asynchrony import train_asynchronously
from atoll.datacenter.train.replica_group import GroupPulse
from atoll.datacenter.train.trainer import train


def main() -> None:
    """Train the job that the command line names."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m atoll.datacenter.train JOB.toml")
    path = Path(sys.argv[1])
    job = load_job(path)
    timeout_s = job.faults.collective_timeout_s
    if job.faults.recovery == "in-place":
        train_group(job, path.parent, timeout_s)
        return
    with join_world(timeout_s, on_host=job.data_parallel.cpu_offload) as world, Watch(world, timeout_s) as watch:
        run = train if job.asynchrony is None else train_asynchronously
        summary = run(job, path.parent, world, watch)
        watch.ended("finished" if summary.finished else "stopped", summary.steps)


def train_group(job: SiloJob, folder: Path, timeout_s: float) -> None:
    """Train as one rank of a replica group, whose other ranks are this process's world.

    Raises:
        LayoutError: if a launcher other than ours started this process.
    """
    ticket = Ticket.of_environment()
    with (
        join_world(timeout_s, on_host=job.data_parallel.cpu_offload) as world,
        Watch(world, timeout_s) as watch,
        Member(ticket, world, timeout_s, watch.enter) as member,
    ):
        try:
            summary = train(job, folder, world, GroupPulse(watch, member), member=member)
        except OverError:
            watch.ended("not needed", 0)
            return
        watch.ended("finished" if summary.finished else "stopped", summary.steps)


if __name__ == "__main__":
    run_rank(main)
