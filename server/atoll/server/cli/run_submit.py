"""``atoll run submit``: begin a run, unchanged, with other values, or once for each point of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from atoll.operator import Job, JobFileError, Operator, Run
from atoll.operator.errors import BadInputError
from atoll.operator.job_options import changes_of, grid_of, points_of
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Command
from atoll.server.cli.output import json_option, print_json, transfers
from atoll.server.cli.watch import finish, watch
from atoll.server.jobs.changes import changed


@click.command(cls=Command)
@click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Change a key of the job.")
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Begin a run for each value; several options make a grid.",
)
@click.option("--watch", "watch_it", is_flag=True, help="Follow the run until it has ended.")
@json_option
@connected
def submit(
    client: Operator, *, job: Path, sets: tuple[str, ...], sweeps: tuple[str, ...], watch_it: bool, json_output: bool
) -> None:
    """Check the job file JOB, send its model, and begin the run; prints the run's id.

    With --sweep, a run begins for each combination of values. The runs share the participants, which work for one run
    at a time; `atoll run compare` shows them side by side.
    """
    if watch_it and sweeps:
        raise BadInputError("--watch follows one run, and --sweep begins several", "leave one of them out")
    made = _submitted(client, job, sets, sweeps)
    for one in made:
        for warning in one.warnings:
            click.echo(f"warning: run {one.id}: {warning}", err=True)
        if json_output:
            said = {"run": one.id, "model_blob": one.model_ref(0).blob, "warnings": one.warnings}
            print_json(said, line=watch_it or len(made) > 1)
        else:
            click.echo(one.id)
    if sweeps:
        click.echo(f"compare them: atoll run compare {' '.join(one.id for one in made)} -o comparison.html", err=True)
    if watch_it:
        finish(watch(made[0], json_output=json_output))


def _submitted(client: Operator, job: Path, sets: Sequence[str], sweeps: Sequence[str]) -> list[Run]:
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
