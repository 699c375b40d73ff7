"""``atoll stats``: figures of the participants' tables, from a job with ``[statistics]``."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from atoll.operator import Findings, Job, JobFileError, Operator
from atoll.operator.errors import BadInputError
from atoll.operator.statistics import rows_words
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Command, StoppedError, writing
from atoll.server.cli.output import console, json_option, print_json, print_table, transfers
from atoll.server.cli.stats_tables import (
    CATEGORY_COLUMNS,
    GROUP_COLUMNS,
    category_rows,
    group_rows,
    numeric_columns,
    numeric_row,
)
from atoll.server.cli.watch import NoticeSink, finish, follow
from atoll.statistics import FIELDS
from atoll.text.figures import counted

F = TypeVar("F", bound=Callable[..., object])


def output_options(function: F) -> F:
    """Options of commands that print figures: a JSON file, a CSV file, JSON on standard output."""
    file = click.Path(dir_okay=False, path_type=Path)
    with_csv = click.option("--csv", "csv_file", type=file, help="Also write a CSV file.")(json_option(function))
    return click.option("-o", "--output", type=file, help="Also write the figures to a JSON file.")(with_csv)


@click.command(cls=Command)
@click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@output_options
@connected
def stats(client: Operator, *, job: Path, output: Path | None, csv_file: Path | None, json_output: bool) -> None:
    """Run the job file JOB, which has [statistics], and print the figures of all participants' rows."""
    try:
        asked = Job.load(job)
    except JobFileError as error:
        raise BadInputError(str(error)) from error
    if asked.statistics is None:
        raise BadInputError(f"{job}: has no [statistics]", "`atoll run submit` trains a model")
    check_files(output, csv_file)
    with transfers(f"submitting {job.name}"):
        made = client.submit(asked)
    click.echo(f"run {made.id}", err=True)
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)
    try:
        finish(follow(made, NoticeSink()))
    except KeyboardInterrupt:
        raise StoppedError(f"stopped waiting; the run continues; afterwards: atoll run stats {made.id}") from None
    put_out(made.statistics(), output, csv_file, json_output=json_output)


def check_files(output: Path | None, csv_file: Path | None) -> None:
    """Refuse, before asking participants, output files that cannot be written or that contain anything but figures.

    Raises:
        BadInputError: names the file.
    """
    for path, holds_figures in ((output, _is_json_of_figures), (csv_file, _is_csv_of_figures)):
        if path is None:
            continue
        with writing(path):
            if path.exists() and path.stat().st_size and not holds_figures(path):
                raise BadInputError(
                    f"{path} exists and holds no figures of statistics", "name another file, or remove it"
                )
            with path.open("a", encoding="utf-8"):  # the folder must exist and be writable
                pass
        if not path.stat().st_size:
            path.unlink()


def _is_json_of_figures(path: Path) -> bool:
    try:
        Findings.load(path)
    except ValueError:  # not figures, or not text
        return False
    return True


def _is_csv_of_figures(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return next(csv.reader(file), None) == list(FIELDS)


def put_out(found: Findings, output: Path | None, csv_file: Path | None, *, json_output: bool) -> None:
    """Write the requested files, and print the figures.

    Raises:
        BadInputError: if a file cannot be written.
    """
    _write(found, output, csv_file)
    if json_output:
        print_json(found.to_dict())
    else:
        show_figures(found)


def _write(found: Findings, output: Path | None, csv_file: Path | None) -> None:
    if output is not None:
        with writing(output):
            found.save(output)
    if csv_file is not None:
        with writing(csv_file), csv_file.open("w", encoding="utf-8", newline="") as file:
            rows: csv.DictWriter[str] = csv.DictWriter(file, FIELDS)
            rows.writeheader()
            rows.writerows(found.records())


def show_figures(found: Findings) -> None:
    """Print the figures as tables."""
    click.echo(f"{rows_words(found)} of {counted(found.participants, 'participant')}")
    if found.numeric:
        print_table(numeric_columns(found), map(numeric_row, found.numeric), "")
    if groups := list(group_rows(found)):
        print_table(GROUP_COLUMNS, groups, "")
    if found.categories:
        print_table(CATEGORY_COLUMNS, category_rows(found), "")
    if any(row["value"] is None for row in found.records()):
        why = "suppressed (too few rows or participants)" if found.noise is None else "too few rows for the noise"
        console(stderr=True).print(f"- or ·: {why}, or not defined", markup=False)
    if found.noise is not None:
        console(stderr=True).print("±: standard error of the noise; quantiles are the middles of their cells")
