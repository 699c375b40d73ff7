"""``atoll simulate``: run a job over virtual participants on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from atoll.operator.comparison import Comparison
from atoll.operator.errors import BadInputError, OperatorError, RunFailedError
from atoll.operator.job_options import changes_of, grid_of
from atoll.server.cli.comparison import show_comparison
from atoll.server.cli.errors import Command
from atoll.server.cli.output import console, json_option, print_json, print_table, steps
from atoll.server.cli.stats import show_figures
from atoll.server.cli.unmeasured import unmeasured_lines
from atoll.server.jobs import Job, JobFileError, parse_job
from atoll.server.jobs.changes import changed
from atoll.settings.numbers import Finite
from atoll.text.figures import counted

if TYPE_CHECKING:
    from atoll.server.control.comparing import ComparedRun
    from atoll.simulation.cluster import RayWorkers
    from atoll.simulation.federation import Federation
    from atoll.simulation.result import Result
    from atoll.simulation.workers import Workers

MODEL_FILE, REPORT_FILE, COMPARISON_FILE = "model.safetensors", "report.html", "comparison.html"
HISTORY_FILE = "history.csv"
STATISTICS_FILE = "statistics.json"
_WIDE = ("round>", "kind", "phase", "reported>")
_VIRTUAL = "virtual s>"
_METRICS = 4
_POPULATION = "Number of participants, or a file with one id per line, from which participants are then created."
_GPUS = "GPUs of each worker, or a share of one GPU and of its memory; by default every worker sees all GPUs."
_BACKEND = "Where workers run: on this machine, or as Ray actors (RAY_ADDRESS); --workers 0 then means as many as fit."


@dataclass(frozen=True)
class Simulated:
    """The output of ``--json``.

    Attributes:
        digest: of the final model.
        status: finished, or paused if the privacy budget is spent.
        reason: why it ended.
        seconds: real duration of the simulation.
        virtual_s: duration of the run in virtual time.
        rounds: one row for each attempt at a round, ``duration_s`` virtual.
    """

    digest: str
    status: str
    reason: str
    seconds: float
    virtual_s: float
    rounds: tuple[Mapping[str, Any], ...]


@click.command(cls=Command)
@click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--participants",
    required=True,
    metavar="MODULE:FACTORY",
    help="Function or class that creates a participant from its number.",
)
@click.option("--population", required=True, metavar="NUMBER|FILE", help=_POPULATION)
@click.option("--workers", type=click.IntRange(0, 256), default=0, show_default=True, help="Processes; 0: this one.")
@click.option(
    "--backend", type=click.Choice(["processes", "ray"]), default="processes", show_default=True, help=_BACKEND
)
@click.option("--gpus", type=Finite(0, min_open=True), metavar="NUMBER", help=_GPUS)
@click.option(
    "--examples", type=click.IntRange(1), help="Examples that each participant declares; by default it is asked."
)
@click.option("--evaluate", metavar="MODULE:FUNCTION", help="Function that evaluates each released model.")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV file with participants' availability.",
)
@click.option(
    "--dropout",
    type=Finite(0, 1, max_open=True),
    default=0.0,
    help="Share of tasks in which the participant drops out.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed for drop-outs.")
@click.option("--strict", is_flag=True, help="Stop at the first failure of a participant's code.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Override a key of the job.")
@click.option(
    "--sweep",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Run the job once for each value; several options form a grid.",
)
@click.option("--repeat", type=click.IntRange(1, 1000), help="Run each this many times, with different seeds.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of concurrent runs.")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Folder for the state, to resume after a kill."
)
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for model and report.")
@json_option
def simulate(*, job: Path, changes: tuple[str, ...], output: Path | None, json_output: bool, **options: Any) -> None:
    """Run the job file JOB over a population of virtual participants.

    With --sweep or --repeat several runs are compared: -o also gets a page with all of them, comparison.html.
    """
    from atoll.simulation.errors import ParticipantError, SetupError, SimulationError  # noqa: PLC0415
    from atoll.simulation.errors import RunFailedError as Failed  # noqa: PLC0415 - takes seconds; `--help` does not need it

    try:
        played = changed(Job.load(job), changes_of(changes), f"{job} with --set")
        if played.model is None and played.statistics is None:
            raise BadInputError(
                f"{job}: model.initial: is missing; a simulation begins with a safetensors file",
                'write one with safetensors.numpy.save_file(arrays, "init.safetensors") and name it in [model]',
            )
        if output is not None:
            _make_folder(output)
        if options["sweep"] or options["repeat"]:
            _compare(played, output, json_output=json_output, **options)
            return
        result = _played(played, quiet=json_output, **options)
    except (JobFileError, SetupError) as error:
        raise BadInputError(str(error)) from error
    except (Failed, ParticipantError) as error:
        raise RunFailedError(str(error)) from error
    except SimulationError as error:
        raise OperatorError(str(error)) from error
    if output is not None:
        _save(result, output)
    _show(result, output, json_output=json_output)
    if played.statistics is not None and not json_output:
        show_figures(result.statistics())


def _played(job: Job, *, quiet: bool, **options: Any) -> Result:
    with steps(f"simulating {job.job.name}") as show:  # before loading the user's modules, which takes seconds
        federation = _federation(**options)
        return federation.run(
            job,
            progress=False if quiet else lambda done, total: show(done, total, "rounds"),
            folder=options["folder"],
            **_common(job, **options),
        )


def _compare(job: Job, output: Path | None, *, json_output: bool, **options: Any) -> None:
    """Run the jobs of ``--sweep`` and ``--repeat``; write each one's model and report as soon as it has ended."""
    from atoll.simulation.sweeping import sweep  # noqa: PLC0415 - as above

    grid = grid_of(options["sweep"])
    rows: list[ComparedRun] = []

    def done(row: ComparedRun, result: Result | None) -> None:
        rows.append(row)
        name = f"{len(rows):03}"
        if result is not None and output is not None:
            _save(result, output / "runs" / name)
        if not json_output:
            click.echo(f"run {name}, {row.variant}: {row.status}{f', {row.reason}' if row.reason else ''}", err=True)

    try:
        with steps(f"simulating {job.job.name}") as show:
            sweep(
                _federation(**options),
                job,
                grid,
                repeat=options["repeat"] or 1,
                jobs=options["jobs"],
                done=done,
                progress=False if json_output else show,
                folder=options["folder"],
                **_common(job, **options),
            )
    finally:  # also after an interrupt: the runs that have ended
        if rows:
            _show_rows(rows, output, json_output=json_output)
    if failed := [run.reason for run in rows if run.status == "failed"]:
        raise RunFailedError(f"{len(failed)} of {counted(len(rows), 'run')} failed; the first: {failed[0]}")


def _show_rows(rows: list[ComparedRun], output: Path | None, *, json_output: bool) -> None:
    page = None
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        page = output / COMPARISON_FILE
    show_comparison(Comparison(tuple(rows)), page, json_output=json_output)


def _common(job: Job, **options: Any) -> dict[str, Any]:
    """Settings shared by a single run and a sweep."""
    evaluate = options["evaluate"]
    return {
        "initial": None if job.model is None else job.model.initial,
        "evaluate": None if evaluate is None else _located(evaluate),
        "strict": options["strict"],
        "workers": _workers(options["workers"], options["backend"], options["gpus"]),
    }


def _federation(**options: Any) -> Federation:
    from atoll.simulation.behaviour import Behaviour  # noqa: PLC0415 - as above
    from atoll.simulation.federation import Federation  # noqa: PLC0415 - as above

    population, trace = _population(options["population"]), options["trace"]
    dropout = {"dropout": options["dropout"], "seed": options["seed"]}
    return Federation(
        participants=cast("Any", _located(options["participants"])),
        population=population,
        examples=options["examples"],
        behaviour=Behaviour(**dropout) if trace is None else Behaviour.of_trace(trace, population, **dropout),
    )


def _population(given: str) -> int | list[str]:
    from atoll.simulation.population import Population  # noqa: PLC0415 - as above

    try:
        return int(given)
    except ValueError:
        return Population.names_in(Path(given))


def _make_folder(output: Path) -> None:
    """Create the folder for results before the first run."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"-o {output} cannot be created: {error.strerror}", "give a folder to write to") from error
    if not os.access(output, os.W_OK | os.X_OK):
        raise BadInputError(f"-o {output} cannot be written to", "give a folder to write to")


def _save(result: Result, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    result.save(folder / MODEL_FILE)
    result.report(folder / REPORT_FILE)
    result.history.to_csv(folder / HISTORY_FILE)
    if result.has_statistics:
        result.statistics().save(folder / STATISTICS_FILE)


def _workers(count: int, backend: str, gpus: float | None) -> Workers | RayWorkers:
    from atoll.simulation.cluster import RayWorkers  # noqa: PLC0415 - as above
    from atoll.simulation.workers import Workers  # noqa: PLC0415 - as above

    return RayWorkers(count or None, gpus=gpus or 0.0) if backend == "ray" else Workers(count, gpus or 0.0)


def _located(name: str) -> object:
    from atoll.client.errors import UsageError  # noqa: PLC0415 - as above
    from atoll.client.in_process import locate  # noqa: PLC0415 - as above

    try:
        return locate(name)
    except UsageError as error:
        raise BadInputError(str(error)) from error


def _show(result: Result, output: Path | None, *, json_output: bool) -> None:
    rows = tuple(result.history.rows())
    if json_output:
        print_json(Simulated(result.digest, result.status, result.reason, result.seconds, result.virtual_s, rows))
        return
    metrics = _shown_metrics(rows, result.detail().job_toml)
    virtual = result.virtual_s > 0  # without a speed virtual time does not pass
    columns = (*_WIDE, *([_VIRTUAL] if virtual else []), *(f"{name}>" for name in metrics))
    print_table(columns, (_cells(row, metrics, virtual=virtual) for row in rows), "no round was played")
    shown = console(stderr=True)
    reason = f": {result.reason}" if result.reason else ""
    shown.print(f"{result.status} after {result.seconds:.1f} s{reason}", markup=False, soft_wrap=True)
    shown.print(f"final model {result.digest}", markup=False, soft_wrap=True)
    for line in unmeasured_lines(result.detail()):
        shown.print(line, markup=False, soft_wrap=True)
    if output is not None:
        shown.print(f"{output / MODEL_FILE}, {output / REPORT_FILE}", markup=False)


def _shown_metrics(rows: Iterable[Mapping[str, Any]], job_toml: str) -> list[str]:
    """The metrics that get a column; metrics on which the job decides come first."""
    job = parse_job(job_toml)
    found = dict.fromkeys(key for row in rows for key in row if "/" in key)
    deciding = {job.retention.best, job.stop.metric if job.stop else None}
    chosen = sorted(found, key=lambda name: name not in deciding)[:_METRICS]
    return [name for name in found if name in chosen]


def _cells(row: Mapping[str, Any], metrics: list[str], *, virtual: bool) -> tuple[str, ...]:
    fixed = (row["round"] + 1, row["kind"], row["phase"], f"{row['reported']}/{row['cohort']}")
    seconds = row["duration_s"]
    time = ["-" if seconds is None else f"{seconds:.4g}"] if virtual else []
    return (*map(str, fixed), *time, *(f"{row[name]:.4g}" if name in row else "-" for name in metrics))
