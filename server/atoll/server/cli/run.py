"""``atoll run``: follow and control runs, fetch models and reports; more in ``run_submit`` and ``run_exports``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from atoll.operator import Operator, Run
from atoll.operator.errors import BadInputError
from atoll.operator.history import Mode
from atoll.operator.ledger import LATEST
from atoll.operator.models import Which
from atoll.operator.run_job import has_secret_draw
from atoll.server.cli.choosing import best_options, check_best
from atoll.server.cli.comparison import show_comparison
from atoll.server.cli.completion import complete_metrics, complete_models, complete_runs, run_argument
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Group
from atoll.server.cli.formats import (
    MEMBER_COLUMNS,
    RUN_COLUMNS,
    best_lines,
    closing_lines,
    member_rows,
    reason_lines,
    round_columns,
    round_row,
    run_row,
)
from atoll.server.cli.output import busy, json_option, print_json, print_listed, print_table, transfers
from atoll.server.cli.run_exports import COMMANDS
from atoll.server.cli.run_submit import submit
from atoll.server.cli.show_fairness import show_by_participant
from atoll.server.cli.show_round import show_round
from atoll.server.cli.stats import check_files, output_options, put_out
from atoll.server.cli.unmeasured import unmeasured_lines
from atoll.server.cli.watch import finish, watch
from atoll.server.control import RunSummary
from atoll.server.control.curves import shown
from atoll.server.control.never_counted import never_counted
from atoll.text.figures import counted, in_bytes


@click.group(cls=Group)
def run() -> None:
    """Submit, follow and control runs. RUN is a run's id, its name if no other run has it, or `latest`."""


@run.command("list")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of runs, the newest first."
)
@json_option
@connected
def list_runs(client: Operator, *, limit: int, json_output: bool) -> None:
    """List runs, the newest first."""
    runs = tuple(client.runs(limit))
    if json_output:
        print_json(runs)
    else:
        projects = [one.project for one in runs]
        print_listed(RUN_COLUMNS, map(run_row, runs), projects, "no runs; `atoll run submit JOB.toml` begins one")


@run.command()
@run_argument
@click.option("--members", is_flag=True, help="Also list the members of each round, and why some did not count.")
@click.option(
    "--last", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of rounds in the table."
)
@click.option("--round", "label", metavar="ROUND", help="The timeline of one round: 7, or 7.2 for its second attempt.")
@click.option("--by-participant", is_flag=True, help="Show how evaluations differ between participants.")
@click.option(
    "--metric",
    metavar="NAME",
    shell_complete=complete_metrics,
    help="With --by-participant: eval/NAME; default: the job's, or the first.",
)
@json_option
@connected
def show(  # one argument for each option
    client: Operator,
    *,
    run_id: str,
    members: bool,
    last: int,
    label: str | None,
    by_participant: bool,
    metric: str | None,
    json_output: bool,
) -> None:
    """Show a run and its rounds, or where the time of one round went and why some members did not count."""
    if metric is not None and not by_participant:
        raise BadInputError("--metric chooses what --by-participant shows", "add --by-participant")
    if label is not None:
        show_round(client.run(run_id), label, json_output=json_output)
        return
    if by_participant:
        show_by_participant(client.run(run_id).detail(members=True), metric, last=last, json_output=json_output)
        return
    detail = client.run(run_id).detail(members=members or not json_output)
    if json_output:
        found = {"never_counted": never_counted(detail.rounds)} if members else {}
        print_json({one.name: getattr(detail, one.name) for one in fields(detail)} | found)
        return
    print_table(RUN_COLUMNS, [run_row(detail.run)], "")
    for line in reason_lines(detail.run):
        click.echo(line)
    for line in best_lines(detail):
        click.echo(line)
    if detail.run.model_blob:
        click.echo(f"{'final' if detail.run.ended else 'newest'} model {detail.run.model_blob}")
    rounds, decides = detail.rounds[-last:], detail.best.metric if detail.best is not None else ""
    metrics = shown(rounds, decides)
    print_table(round_columns(metrics), [round_row(item, metrics) for item in rounds], "no round has begun")
    for line in (*closing_lines(detail.rounds, secret=has_secret_draw(detail)), *unmeasured_lines(detail)):
        click.echo(line)
    if members:
        print_table(MEMBER_COLUMNS, member_rows(detail), "no participant has been invited")


@run.command("watch")
@run_argument
@json_option
@connected
def watch_run(client: Operator, *, run_id: str, json_output: bool) -> None:
    """Follow a run until it has ended; exit code 5 if it failed or was cancelled."""
    finish(watch(client.run(run_id), json_output=json_output))


@run.command()
@run_argument
@json_option
@connected
def pause(client: Operator, *, run_id: str, json_output: bool) -> None:
    """Pause a run after its current round."""
    found = client.run(run_id).pause()
    _show_state(found, json_output)
    if found.status == "running":
        click.echo("it pauses when the round in progress has ended", err=True)


@run.command()
@run_argument
@json_option
@connected
def resume(client: Operator, *, run_id: str, json_output: bool) -> None:
    """Resume a paused run."""
    _show_state(client.run(run_id).resume(), json_output)


@run.command()
@run_argument
@click.option("--reason", default="", help="Reason, which is recorded and sent to the participants.")
@json_option
@connected
def cancel(client: Operator, *, run_id: str, reason: str, json_output: bool) -> None:
    """Cancel a run now; released models stay."""
    _show_state(client.run(run_id).cancel(reason), json_output)


@run.command()
@run_argument
@click.option(
    "--rounds", required=True, type=click.IntRange(1), help="Number of further rounds, from its newest model."
)
@click.option("--watch", "watch_it", is_flag=True, help="Follow the run until it has ended.")
@json_option
@connected
def extend(client: Operator, *, run_id: str, rounds: int, watch_it: bool, json_output: bool) -> None:
    """Continue a run that has finished or was cancelled, with its history and optimiser state."""
    found = client.run(run_id)
    extended = found.extend(rounds)
    if watch_it:
        finish(watch(found, json_output=json_output))
    else:
        _show_state(extended, json_output)


@run.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def delete(client: Operator, *, run_ids: tuple[str, ...], yes: bool, json_output: bool) -> None:
    """Delete ended runs permanently: their records, logs and models, except models that other runs use."""
    found = {one.id: one for one in map(client.run, run_ids)}
    if not yes and not click.confirm(f"Delete {', '.join(found)} permanently?", err=True):
        raise BadInputError("nothing was deleted")
    for one, named in found.items():
        removed = named.delete()
        if json_output:
            print_json({"run": one, "removed": removed}, line=True)
        else:
            click.echo(f"run {one} is deleted: {in_bytes(sum(item.stored_bytes for item in removed))} removed")


@run.command()
@run_argument
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The safetensors file."
)
@click.option(
    "--round",
    "number",
    type=click.IntRange(0),
    shell_complete=complete_models,
    help="The model after this many rounds; 0 for the initial model.",
)
@click.option("--averaged", is_flag=True, help="The mean of the released models, for a run with [iterate_averaging].")
@best_options
@json_option
@connected
def model(client: Operator, *, run_id: str, output: Path, json_output: bool, **wanted: Any) -> None:
    """Fetch a released model, the newest by default, into a safetensors file."""
    found = client.run(run_id)
    which = _which(found, **wanted)
    with transfers("asking for the model") as steps:
        ref = found.save_model(output, which, steps)
    averaged = which == "averaged"
    if json_output:
        print_json({"file": str(output), "round": ref.round, "blob": ref.blob, "size_bytes": ref.layout.size_bytes})
    else:
        what = "the mean of the models" if averaged else "the model"
        click.echo(f"{output}: {what} after {counted(ref.round, 'round')}, {in_bytes(ref.layout.size_bytes)}", err=True)


@run.command()
@run_argument
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The HTML file.")
@connected
def report(client: Operator, *, run_id: str, output: Path) -> None:
    """Write a report of a run as one self-contained HTML file."""
    with busy("drawing the report"):
        client.run(run_id).report(output)
    click.echo(f"{output}: {in_bytes(output.stat().st_size)}", err=True)


@run.command()
@run_argument
@output_options
@connected
def stats(client: Operator, *, run_id: str, output: Path | None, csv_file: Path | None, json_output: bool) -> None:
    """Print the figures of a run of statistics that has finished."""
    check_files(output, csv_file)
    put_out(client.run(run_id).statistics(), output, csv_file, json_output=json_output)


@run.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--separate", is_flag=True, help="Do not combine runs whose jobs differ only in their seeds.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with curves.")
@json_option
@connected
def compare(
    client: Operator, *, run_ids: tuple[str, ...], separate: bool, output: Path | None, json_output: bool
) -> None:
    """Compare runs: differences of their jobs, last metrics, time, bytes sent, epsilon.

    Runs whose jobs differ only in their seeds are repeats, summarised by mean and standard deviation.
    """
    with busy("fetching the runs"):
        found = client.compare(run_ids, separate=separate)
    show_comparison(found, output, json_output=json_output)


def _which(
    found: Run, *, number: int | None, averaged: bool, best: bool, metric: str | None, mode: Mode | None
) -> Which:
    if averaged + best + (number is not None) > 1:
        raise BadInputError("--round, --averaged and --best exclude each other", "give one of them")
    check_best(best=best, metric=metric, mode=mode)
    if best:
        chosen = found.best(metric, mode)
        click.echo(f"{chosen.metric} {chosen.value:.6g} ({chosen.mode})", err=True)
        return chosen.round
    return "averaged" if averaged else LATEST if number is None else number


def _show_state(found: RunSummary, json_output: bool) -> None:
    if json_output:
        print_json(found)
    else:
        click.echo(
            f"run {found.run} ({found.name}) is {found.status}, {counted(found.rounds_released, 'round')} released"
        )


for _command in (submit, *COMMANDS):
    run.add_command(_command)
