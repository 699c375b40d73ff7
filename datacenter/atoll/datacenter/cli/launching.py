"""What ``train`` and ``join`` have in common: options of a start, and from a job file to how it ended."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from atoll.client import ClientError
from atoll.datacenter.elastic.check import check_job
from atoll.datacenter.elastic.launch import Nodes, Report, launch, parse_nodes
from atoll.datacenter.errors import DatacenterError
from atoll.datacenter.job import SiloJob, load_job
from atoll.settings import SettingsFileError
from atoll.wire.errors import WireError
from atoll.wire.figures import counted

if TYPE_CHECKING:
    Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    click.option(
        "--nproc", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes on this machine."
    ),
    click.option(
        "--nnodes",
        default="1",
        show_default=True,
        metavar="N|MIN:MAX",
        help="Machines; with MIN:MAX the job goes on with fewer when some are lost.",
    ),
    click.option("--meet", metavar="HOST:PORT", help="Where several machines meet: the first one's address."),
    click.option("--id", "name", help="Name of this start, the same on all machines.  [default: the job's name]"),
    click.option(
        "--max-restarts",
        type=click.IntRange(0, 10_000),
        help="Times that lost ranks are started again.  [default: the job's]",
    ),
    click.option(
        "--logs",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for what each rank says.  [default: logs, beside the job file]",
    ),
    click.option(
        "--json", "json_output", is_flag=True, help="Print how the job ended as JSON, and events as lines of it."
    ),
)


def start_options(command: Command) -> Command:
    """Options of every command that starts ranks; what they give makes a ``Start``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Start:
    """How ranks are to be started, as the command line says.

    Attributes:
        job: the job file.
        nproc: processes on this machine.
        nnodes: machines, ``N`` or ``MIN:MAX``.
        meet: where they meet; None for one.
        name: of this start; None: chosen.
        max_restarts: None: the job's.
        logs: None: beside the job file.
        json_output: print JSON.
    """

    job: Path
    nproc: int
    nnodes: str
    meet: str | None
    name: str | None
    max_restarts: int | None
    logs: Path | None
    json_output: bool

    def run(
        self,
        module: str,
        options: Sequence[str],
        check: Callable[[SiloJob], object] | None = None,
        *,
        bounded: bool = True,
    ) -> None:
        """Check everything that can be known, start the ranks, and end the command as they end.

        Args:
            module: that each rank runs, with the job file and ``options``.
            options: as above.
            check: of the job, before a process starts; raises.
            bounded: whether the job ends with ``job.steps``.
        """
        say = _Say(json_output=self.json_output)
        try:
            job = load_job(self.job)
            nodes = self._nodes(job)
            made = check_job(job, self.job.parent, self.nproc, nodes)
            if check is not None:
                check(job)
            if made is not None:
                say.event(_goes_on(job, made, bounded=bounded))
            restarts = job.faults.max_restarts if self.max_restarts is None else self.max_restarts
            command = ["-m", module, str(self.job), *options]
            _silence_torchrun()
            report = launch(job, command, self.nproc, nodes, restarts, self.logs or self.job.parent / "logs", say.event)
        except (DatacenterError, SettingsFileError, ClientError, WireError, OSError) as error:
            say.failed(error)
            raise click.exceptions.Exit(getattr(error, "exit_code", 2)) from None
        say.ended(report)
        raise click.exceptions.Exit(report.exit_code)

    def _nodes(self, job: SiloJob) -> Nodes:
        least, most = parse_nodes(self.nnodes, self.nproc, job.faults.min_world)
        if most > 1 and self.meet is None:
            raise click.UsageError(f"--nnodes {self.nnodes} needs --meet HOST:PORT: an address of the first machine")
        name = self.name
        if name is None:
            name = job.job.name.replace(" ", "-") if most > 1 else uuid.uuid4().hex
        return Nodes(least, most, self.meet or "", name)


def _goes_on(job: SiloJob, made: int, *, bounded: bool) -> str:
    found = f"checkpoint.folder = {job.checkpoint.folder} has a checkpoint of step {made}"
    if made < job.job.steps or not bounded:
        return f"{found}: the job goes on from there"
    return f"{found}, and job.steps = {job.job.steps}: nothing is left to do; raise job.steps to go on"


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
        restarts = f", {counted(report.restarts, 'restart')}" if report.restarts else ""
        text = f"{report.outcome} at step {report.step} after {report.seconds:.1f} s{restarts}"
        if report.outcome == "stopped":
            text += "; the same command goes on from there"
        self._print(asdict(report), text, err=False)

    def _print(self, value: dict[str, object], text: str, *, err: bool) -> None:
        click.echo(json.dumps(value) if self._json else text, err=err and not self._json)
