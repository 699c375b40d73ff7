"""``atoll run``: submit, follow and steer runs, fetch their models and reports."""

from __future__ import annotations

import itertools
import time
from dataclasses import fields
from pathlib import Path
from typing import Protocol

import click

from atoll.server.cli import model_files
from atoll.server.cli.client import ControlClient
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import BadInputError, writing
from atoll.server.cli.formats import (
    MEMBER_COLUMNS,
    ROUND_COLUMNS,
    RUN_COLUMNS,
    has_secret_draw,
    member_rows,
    never_counted_lines,
    reason_lines,
    round_row,
    run_row,
)
from atoll.server.cli.output import busy, json_option, print_json, print_table, size
from atoll.server.cli.timeline import show_round
from atoll.server.cli.watch import finish, watch
from atoll.server.control import RunSummary
from atoll.server.control.attendance import never_counted
from atoll.server.jobs import JobFileError, parse_job
from atoll.text.figures import counted

LATEST = "latest"
run_argument = click.argument("run_id", metavar="RUN")


@click.group()
def run() -> None:
    """Submit, follow and steer runs. RUN is a run's id, or `latest`."""


@run.command()
@click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--watch", "watch_it", is_flag=True, help="Follow the run until it has ended.")
@json_option
@connected
def submit(client: ControlClient, *, job: Path, watch_it: bool, json_output: bool) -> None:
    """Check the job file JOB, send its model, begin the run; prints the run's id."""
    text = job.read_bytes()
    try:
        spec = parse_job(text, str(job))
    except JobFileError as error:
        raise BadInputError(str(error)) from error
    with model_files.open_model(model_files.initial_file(job, spec)) as model:
        blob = model_files.upload(client, model)
        made = client.submit(text, job.name, model.layout, blob)
    if json_output:
        print_json({"run": made, "model_blob": blob}, line=watch_it)
    else:
        click.echo(made)
    if watch_it:
        finish(watch(client, made, json_output=json_output))


@run.command("list")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of runs, the newest first."
)
@json_option
@connected
def list_runs(client: ControlClient, *, limit: int, json_output: bool) -> None:
    """List runs, the newest first."""
    runs = tuple(itertools.islice(client.runs(page=limit), limit))
    if json_output:
        print_json(runs)
    else:
        print_table(RUN_COLUMNS, map(run_row, runs), "no runs; `atoll run submit JOB.toml` begins one")


@run.command()
@run_argument
@click.option("--members", is_flag=True, help="Also list the members of each round, and why some did not count.")
@click.option(
    "--last", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of rounds in the table."
)
@click.option("--round", "label", metavar="ROUND", help="The timeline of one round: 7, or 7.2 for its second attempt.")
@json_option
@connected
def show(client: ControlClient, *, run_id: str, members: bool, last: int, label: str | None, json_output: bool) -> None:
    """Show a run and its rounds, or where the time of one round went and why some members did not count."""
    if label is not None:
        show_round(client, find_run(client, run_id), label, json_output=json_output)
        return
    detail = client.run(find_run(client, run_id), members=members or not json_output)
    if json_output:
        found = {"never_counted": never_counted(detail.rounds)} if members else {}
        print_json({one.name: getattr(detail, one.name) for one in fields(detail)} | found)
        return
    print_table(RUN_COLUMNS, [run_row(detail.run)], "")
    for line in reason_lines(detail.run):
        click.echo(line)
    print_table(ROUND_COLUMNS, map(round_row, detail.rounds[-last:]), "no round has begun")
    for line in never_counted_lines(detail.rounds, secret=has_secret_draw(detail)):
        click.echo(line)
    if members:
        print_table(MEMBER_COLUMNS, member_rows(detail), "no participant has been invited")


@run.command("watch")
@run_argument
@json_option
@connected
def watch_run(client: ControlClient, *, run_id: str, json_output: bool) -> None:
    """Follow a run until it has ended; exit code 5 if it failed or was cancelled."""
    finish(watch(client, find_run(client, run_id), json_output=json_output))


@run.command()
@run_argument
@json_option
@connected
def pause(client: ControlClient, *, run_id: str, json_output: bool) -> None:
    """Pause after the round in work."""
    found = client.pause(find_run(client, run_id))
    _show_state(found, json_output)
    if found.status == "running":
        click.echo("it pauses when the round in work has ended", err=True)


@run.command()
@run_argument
@json_option
@connected
def resume(client: ControlClient, *, run_id: str, json_output: bool) -> None:
    """Go on with a paused run."""
    _show_state(client.resume(find_run(client, run_id)), json_output)


@run.command()
@run_argument
@click.option("--reason", default="", help="Kept in the record, and told to the participants.")
@json_option
@connected
def cancel(client: ControlClient, *, run_id: str, reason: str, json_output: bool) -> None:
    """End a run now; models that are released stay."""
    _show_state(client.cancel(find_run(client, run_id), reason), json_output)


@run.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def delete(client: ControlClient, *, run_ids: tuple[str, ...], yes: bool, json_output: bool) -> None:
    """Delete ended runs for good: their records, logs and models, except models that other runs have."""
    found = dict.fromkeys(find_run(client, run_id) for run_id in run_ids)
    if not yes and not click.confirm(f"Delete {', '.join(found)} for good?", err=True):
        raise BadInputError("nothing was deleted")
    for one in found:
        removed = client.delete(one)
        if json_output:
            print_json({"run": one, "removed": removed}, line=True)
        else:
            click.echo(f"run {one} is deleted: {size(sum(item.stored_bytes for item in removed))} removed")


@run.command()
@run_argument
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The safetensors file."
)
@click.option("--round", "number", type=click.IntRange(0), help="After this many rounds; 0: the initial model.")
@click.option("--averaged", is_flag=True, help="The mean of the released models, of a run with [iterate_averaging].")
@json_option
@connected
def model(
    client: ControlClient, *, run_id: str, output: Path, number: int | None, averaged: bool, json_output: bool
) -> None:
    """Fetch a released model, the newest by default, into a safetensors file."""
    ref = client.model(find_run(client, run_id), number, averaged=averaged)
    model_files.download(client, ref, output)
    if json_output:
        print_json({"file": str(output), "round": ref.round, "blob": ref.blob, "size_bytes": ref.layout.size_bytes})
    else:
        what = "the mean of the models" if averaged else "the model"
        click.echo(f"{output}: {what} after {counted(ref.round, 'round')}, {size(ref.layout.size_bytes)}", err=True)


@run.command()
@run_argument
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The HTML file.")
@connected
def report(client: ControlClient, *, run_id: str, output: Path) -> None:
    """Write a report of a run: one HTML file that needs nothing else."""
    from atoll.server.report import render  # noqa: PLC0415  # matplotlib loads when it is needed

    with busy("drawing the report"):
        found = find_run(client, run_id)
        elements = client.model(found, None).layout.size
        page = render(client.run(found, members=True), now=time.time(), elements=elements)
    with writing(output):
        output.write_text(page, encoding="utf-8")
    click.echo(f"{output}: {size(len(page.encode()))}", err=True)


class Runs(Protocol):
    """A source of runs: a server or a data directory."""

    def newest_run(self) -> str | None:
        """The id of the newest run; None before the first."""
        ...


def find_run(client: Runs, run_id: str) -> str:
    """The id itself, or that of the newest run for ``latest``.

    Raises:
        BadInputError: if there is no run yet.
    """
    if run_id != LATEST:
        return run_id
    newest = client.newest_run()
    if newest is None:
        raise BadInputError("there is no run yet", "begin one with `atoll run submit JOB.toml`")
    return newest


def _show_state(found: RunSummary, json_output: bool) -> None:
    if json_output:
        print_json(found)
    else:
        click.echo(
            f"run {found.run} ({found.name}) is {found.status}, {counted(found.rounds_released, 'round')} released"
        )
