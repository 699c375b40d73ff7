"""Submits a job file: unchanged, with other values (``--set``), or once for each point of a grid (``--sweep``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atoll.operator import Job, JobFileError, Operator, Run
from atoll.operator.errors import BadInputError
from atoll.operator.job_options import changes_of, grid_of, points_of
from atoll.server.cli.output import transfers
from atoll.server.jobs.changes import changed


def submitted(client: Operator, job: Path, sets: Sequence[str] = (), sweeps: Sequence[str] = ()) -> list[Run]:
    """Begin the runs of a job file, and show the transfer of its model; all jobs are validated first.

    Raises:
        BadInputError: lists every problem of the job file or of the changed job.
    """
    try:
        jobs = _jobs(job, sets, sweeps)
        with transfers(f"submitting {job.name}") as steps:
            return [client.submit(one, steps=steps) for one in jobs]
    except JobFileError as error:
        raise BadInputError(str(error)) from error


def _jobs(job: Path, sets: Sequence[str], sweeps: Sequence[str]) -> list[Path | Job]:
    if not (sets or sweeps):
        return [job]  # unchanged, including comments
    found = Job.load(job)
    return [
        changed(found, point, f"{job} with --set and --sweep") for point in points_of(changes_of(sets), grid_of(sweeps))
    ]
