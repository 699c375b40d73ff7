"""``atoll silo train``: starts the ranks of a job on this machine, and keeps them going."""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import asdict
from pathlib import Path

import click

from atoll.datacenter.elastic.launch import Nodes, Report, check_job, launch, parse_nodes
from atoll.datacenter.errors import DatacenterError
from atoll.datacenter.job import SiloJob, load_job
from atoll.settings import SettingsFileError

_MODULE = "atoll.datacenter.train"


@click.command()
@click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--nproc", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes on this machine.")
@click.option(
    "--nnodes",
    default="1",
    show_default=True,
    metavar="N|MIN:MAX",
    help="Machines; with MIN:MAX the job goes on with fewer when some are lost.",
)
@click.option("--meet", metavar="HOST:PORT", help="Where several machines meet: the first one's address.")
@click.option("--id", "name", help="Name of this start, the same on all machines.  [default: the job's name]")
@click.option(
    "--max-restarts",
    type=click.IntRange(0, 10_000),
    help="Times that lost ranks are started again.  [default: the job's]",
)
@click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for what each rank says.  [default: logs, beside the job file]",
)
@click.option("--json", "json_output", is_flag=True, help="Print how the job ended as JSON, and events as lines of it.")
def train(
    *,
    job: Path,
    nproc: int,
    nnodes: str,
    meet: str | None,
    name: str | None,
    max_restarts: int | None,
    logs: Path | None,
    json_output: bool,
) -> None:
    """Train what JOB.toml says, with a process for each GPU of this machine.

    Everything that can be known is checked before a process starts. Ranks that are lost start again from the last
    checkpoint. SIGINT and SIGTERM end the job after a last checkpoint; the same command goes on from there.
    """
    say = _Say(json_output=json_output)
    try:
        wanted = load_job(job)
        nodes = _nodes(wanted, nproc, nnodes, meet, name)
        check_job(wanted, job.parent, nproc, nodes)
        restarts = wanted.faults.max_restarts if max_restarts is None else max_restarts
        command = ["-m", _MODULE, str(job)]
        _silence_torchrun()
        report = launch(wanted, command, nproc, nodes, restarts, logs or job.parent / "logs", say.event)
    except (DatacenterError, SettingsFileError, OSError) as error:
        say.failed(error)
        raise click.exceptions.Exit(getattr(error, "exit_code", 2)) from None
    say.ended(report)
    raise click.exceptions.Exit(report.exit_code)


def _nodes(job: SiloJob, nproc: int, nnodes: str, meet: str | None, name: str | None) -> Nodes:
    least, most = parse_nodes(nnodes, nproc, job.faults.min_world)
    if most > 1 and meet is None:
        raise click.UsageError(f"--nnodes {nnodes} needs --meet HOST:PORT: an address of the first machine")
    if name is None:
        name = job.job.name.replace(" ", "-") if most > 1 else uuid.uuid4().hex
    return Nodes(least, most, meet or "", name)


def _silence_torchrun() -> None:
    """Its agent logs what we say in our own words."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)


class _Say:
    """Words on standard error for people; with ``--json`` one object a line on standard output."""

    def __init__(self, *, json_output: bool) -> None:
        self._json = json_output

    def event(self, text: str) -> None:
        """Something has happened while the job runs."""
        self._print({"event": text}, text, err=True)

    def failed(self, error: Exception) -> None:
        """The job has failed, or could not begin."""
        self._print({"outcome": "failed", "error": str(error)}, f"error: {error}", err=True)

    def ended(self, report: Report) -> None:
        """The job has ended well."""
        restarts = f", {report.restarts} restarts" if report.restarts else ""
        text = f"{report.outcome} at step {report.step} after {report.seconds:.1f} s{restarts}"
        if report.outcome == "stopped":
            text += "; the same command goes on from there"
        self._print(asdict(report), text, err=False)

    def _print(self, value: dict[str, object], text: str, *, err: bool) -> None:
        click.echo(json.dumps(value) if self._json else text, err=err and not self._json)
