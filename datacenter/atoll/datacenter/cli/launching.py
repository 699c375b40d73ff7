"""Shared code of ``train`` and ``join``: their options, and running a job file to its end."""

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
from atoll.datacenter.checks.start import check_job
from atoll.datacenter.elastic.launch import Nodes, Report, launch, parse_nodes
from atoll.datacenter.errors import DatacenterError
from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.machine import DEFAULT_SHEET, rates_beside
from atoll.datacenter.models import spec_of
from atoll.datacenter.plan.automatic import choose_layout
from atoll.datacenter.plan.step_time import Machine
from atoll.settings import SettingsFileError, to_toml
from atoll.text.figures import counted
from atoll.wire.errors import WireError

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
        help="Machines; with MIN:MAX the job continues with fewer when some are lost.",
    ),
    click.option("--meet", metavar="HOST:PORT", help="Address of the first machine, where several machines meet."),
    click.option(
        "--layout",
        type=click.Choice(["as-written", "auto"]),
        default="as-written",
        show_default=True,
        help="auto: choose mesh, sharding, pipeline, recomputation and micro-batches for these ranks, and write the "
        "job with them to JOB.planned.toml.",
    ),
    click.option("--id", "name", help="Name of this start, the same on all machines.  [default: the job's name]"),
    click.option(
        "--max-restarts",
        type=click.IntRange(0, 10_000),
        help="Maximum number of restarts after ranks are lost.  [default: the job's]",
    ),
    click.option(
        "--logs",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for the ranks' outputs.  [default: logs, beside the job file]",
    ),
    click.option(
        "--json", "json_output", is_flag=True, help="Print how the job ended as JSON, and each event as a line of JSON."
    ),
)


def start_options(command: Command) -> Command:
    """Add the options of commands that start ranks; their values make a ``Start``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Start:
    """How to start the ranks, from the command line.

    Attributes:
        job: the job file.
        nproc: processes on this machine.
        nnodes: machines, ``N`` or ``MIN:MAX``.
        meet: where several machines meet; None for one machine.
        layout: ``as-written``, or ``auto``: planned for the ranks.
        name: name of this start; None: chosen.
        max_restarts: maximum number of restarts; None: the job's.
        logs: folder for outputs; None: beside the job file.
        json_output: print JSON.
    """

    job: Path
    nproc: int
    nnodes: str
    meet: str | None
    layout: str
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
        """Check everything that can be checked in advance, start the ranks, and exit with their outcome.

        Args:
            module: module that each rank runs, with the job file and ``options``.
            options: further arguments.
            check: checks the job before a process starts; raises.
            bounded: whether the job ends with ``job.steps``.
        """
        say = _Say(json_output=self.json_output)
        try:
            job, file = load_job(self.job), self.job
            nodes = self._nodes(job)
            if self.layout == "auto":
                job, file = self._planned(job, nodes, say)
            made = check_job(job, self.job.parent, self.nproc, (nodes.least, nodes.most))
            if check is not None:
                check(job)
            if made is not None:
                say.event(_goes_on(job, made, bounded=bounded))
            restarts = job.faults.max_restarts if self.max_restarts is None else self.max_restarts
            command = ["-m", module, str(file), *options]
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

    def _planned(self, job: SiloJob, nodes: Nodes, say: _Say) -> tuple[SiloJob, Path]:
        """Write the job with the layout that is chosen for its ranks; return it with its file."""
        if nodes.least != nodes.most:
            raise click.UsageError(f"--layout auto needs a fixed number of machines, not --nnodes {self.nnodes}")
        machine = Machine.of(rates_beside(job.metrics.rates or DEFAULT_SHEET, self.job.parent))
        chosen = choose_layout(job, spec_of(job.model), self.nproc * nodes.most, machine)
        file = self.job.with_suffix(".planned.toml")
        file.write_text(to_toml(chosen.job), encoding="utf-8")
        say.event(f"layout: {chosen.layout.describe()} ({chosen.reason}); written to {file}")
        return chosen.job, file


def _goes_on(job: SiloJob, made: int, *, bounded: bool) -> str:
    found = f"checkpoint.folder = {job.checkpoint.folder} has a checkpoint of step {made}"
    if made < job.job.steps or not bounded:
        return f"{found}: the job continues from there"
    return f"{found}, and job.steps = {job.job.steps}: nothing is left to do; raise job.steps to continue"


def _silence_torchrun() -> None:
    """Silence torchrun's agent, which logs the events that we report."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)


class _Say:
    """Prints lines on standard error for people, or with ``--json`` one object per line on standard output."""

    def __init__(self, *, json_output: bool) -> None:
        self._json = json_output

    def event(self, text: str) -> None:
        """Print an event of the running job."""
        self._print({"event": text}, text, err=True)

    def failed(self, error: Exception) -> None:
        """Print that the job failed or could not start."""
        self._print({"outcome": "failed", "error": str(error)}, f"error: {error}", err=True)

    def ended(self, report: Report) -> None:
        """Print that the job succeeded."""
        restarts = f", {counted(report.restarts, 'restart')}" if report.restarts else ""
        text = f"{report.outcome} at step {report.step} after {report.seconds:.1f} s{restarts}"
        if report.replicas_lost or report.replicas_healed:
            text += f", {counted(report.replicas_lost, 'replica group')} lost, {report.replicas_healed} came back"
        if report.outcome == "stopped":
            text += "; the same command continues from there"
        self._print(asdict(report), text, err=False)

    def _print(self, value: dict[str, object], text: str, *, err: bool) -> None:
        click.echo(json.dumps(value) if self._json else text, err=err and not self._json)
