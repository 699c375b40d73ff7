"""``atoll run history``, ``export``, ``tensorboard`` and ``mlflow``: exports for other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import click

from atoll.operator import Operator, Run
from atoll.operator.errors import BadInputError
from atoll.operator.exports.mlflow import DEFAULT_EXPERIMENT
from atoll.operator.history import Mode
from atoll.operator.models import Which
from atoll.operator.table_files import writer_for
from atoll.server.cli.choosing import best_options, check_best
from atoll.server.cli.completion import complete_runs, run_argument
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Command, StoppedError
from atoll.server.cli.output import busy, json_option, print_json, transfers
from atoll.text.figures import counted

_runs_argument = click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)
_follow_option = click.option("--follow", is_flag=True, help="Continue until the runs have ended.")


@click.command(cls=Command)
@run_argument
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="A .csv or .parquet file."
)
@click.option("--by-participant", is_flag=True, help="Write a row for each participant of each round.")
@json_option
@connected
def history(client: Operator, *, run_id: str, output: Path, by_participant: bool, json_output: bool) -> None:
    """Write a row for each attempt at a round, or for each participant of each, with metrics as columns."""
    write = writer_for(output)
    with busy("fetching the rounds"), _extras():
        table = client.run(run_id).history(members=by_participant, complete=True).table(by_participant=by_participant)
        write(table, output)
    if json_output:
        print_json({"file": str(output), "rows": len(table.rows), "columns": dict(table.columns)})
    else:
        click.echo(f"{output}: {counted(len(table.rows), 'row')}, {len(table.columns)} columns", err=True)


@click.command(cls=Command)
@run_argument
@click.option(
    "-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="A new or empty folder."
)
@best_options
@click.option(
    "--data-statistics",
    metavar="RUN",
    shell_complete=complete_runs,
    help="A run of statistics, whose figures describe the data in the model card.",
)
@json_option
@connected
def export(
    client: Operator,
    *,
    run_id: str,
    output: Path,
    best: bool,
    metric: str | None,
    mode: Mode | None,
    data_statistics: str | None,
    json_output: bool,
) -> None:
    """Write a model and a model card to a folder that Hugging Face's and MLflow's tools can read."""
    check_best(best=best, metric=metric, mode=mode)
    found = client.run(run_id)
    which: Which = found.best(metric, mode).round if best else "latest"
    data = None if data_statistics is None else client.run(data_statistics).statistics()
    with transfers("asking for the model") as steps:
        found.export(output, which, data=data, steps=steps)
    if json_output:
        print_json({"folder": str(output), "run": found.id})
    else:
        click.echo(f"{output}: model, model card and history of run {found.id}", err=True)


@click.command(cls=Command)
@_runs_argument
@click.option(
    "--logdir", required=True, type=click.Path(file_okay=False, path_type=Path), help="TensorBoard's own --logdir."
)
@_follow_option
@json_option
@connected
def tensorboard(client: Operator, *, run_ids: Sequence[str], logdir: Path, follow: bool, json_output: bool) -> None:
    """Write curves and settings of runs for TensorBoard, in a sub-folder for each run."""
    found = [client.run(one) for one in run_ids]
    work = {one.id: _tensorboard_of(one, logdir, follow=follow) for one in found}
    for run, folder in _done(client, work, follow=follow):
        if json_output:
            print_json({"run": run, "folder": folder}, line=True)
        else:
            click.echo(folder)
    click.echo(f"look at them: tensorboard --logdir {logdir}", err=True)


@click.command(cls=Command)
@_runs_argument
@click.option("--tracking-uri", metavar="URI", help="MLflow's server or store. Default: $MLFLOW_TRACKING_URI.")
@click.option(
    "--experiment",
    metavar="NAME",
    default=DEFAULT_EXPERIMENT,
    show_default=True,
    help="MLflow experiment; created if missing.",
)
@_follow_option
@json_option
@connected
def mlflow(
    client: Operator,
    *,
    run_ids: Sequence[str],
    tracking_uri: str | None,
    experiment: str,
    follow: bool,
    json_output: bool,
) -> None:
    """Write runs to MLflow: settings, metrics and, for ended runs, model, model card and report.

    A run that MLflow already has is updated.
    """
    found = [client.run(one) for one in run_ids]
    work = {one.id: _mlflow_of(one, experiment, tracking_uri, follow=follow) for one in found}
    for run, mlflow_run in _done(client, work, follow=follow):
        if json_output:
            print_json({"run": run, "mlflow_run": mlflow_run, "experiment": experiment}, line=True)
        else:
            click.echo(mlflow_run)


COMMANDS = (history, export, tensorboard, mlflow)
"""The commands of this module, which ``atoll run`` adds."""


def _tensorboard_of(run: Run, logdir: Path, *, follow: bool) -> Callable[[], str]:
    return lambda: str(run.to_tensorboard(logdir, follow=follow, lost=_notice))


def _mlflow_of(run: Run, experiment: str, tracking_uri: str | None, *, follow: bool) -> Callable[[], str]:
    return lambda: run.to_mlflow(experiment, tracking_uri=tracking_uri, follow=follow, lost=_notice)


def _notice(text: str) -> None:
    click.echo(text, err=True)


def _done(client: Operator, work: dict[str, Callable[[], str]], *, follow: bool) -> Iterator[tuple[str, str]]:
    """Each run with the result of its work: one after another, or concurrently if they are followed.

    Raises:
        StoppedError: on Ctrl-C.
    """
    label = f"{'following' if follow else 'writing'} {counted(len(work), 'run')}"
    with busy(label), _extras(), ThreadPoolExecutor(len(work) if follow else 1) as pool:
        names = {pool.submit(one): run for run, one in work.items()}
        try:
            for done in as_completed(names):
                yield names[done], done.result()
        except BaseException as error:
            client.close()  # ends the calls of the other threads
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                raise StoppedError(
                    "stopped; the runs continue, and repeating the command brings everything up to date"
                ) from None
            raise


@contextmanager
def _extras() -> Iterator[None]:
    """Convert the error about a missing optional library, which names the extra, to a ``BadInputError``."""
    try:
        yield
    except ImportError as error:
        raise BadInputError(str(error)) from error
