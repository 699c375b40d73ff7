"""Output of commands: JSON on request, otherwise tables; times and sizes in readable units."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import click
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from atoll.server.control import as_json

_UNPRINTED = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that JSON may contain but that control a terminal: DEL, C1 and format characters."""
PIPE_WIDTH = 400
"""Width if the output is not a terminal, large enough that nothing is cut."""

STATUS_STYLES = {
    "running": "cyan",
    "training": "cyan",
    "finished": "green",
    "released": "green",
    "reported": "green",
    "connected": "green",
    "paused": "yellow",
    "abandoned": "yellow",
    "declined": "yellow",
    "late": "yellow",
    "over_selected": "blue",
    "failed": "red",
    "rejected": "red",
    "timed_out": "red",
    "silent": "magenta",
    "revoked": "red",
}

json_option = click.option("--json", "json_output", is_flag=True, help="Print JSON (keys: docs/command-line.md).")


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr, as wide as the terminal, or as wide as needed without a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def print_json(value: object, *, line: bool = False) -> None:
    """Print a value as JSON: indented, or on one line."""
    text = json.dumps(as_json(value), ensure_ascii=False, allow_nan=False, indent=None if line else 2)
    click.echo(_UNPRINTED.sub(lambda found: json.dumps(found[0])[1:-1], text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print a table, or ``empty`` without rows; columns whose names end in ``>`` are right-aligned numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(column.removesuffix(">")), justify="right" if column.endswith(">") else "left")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    if not table.rows:
        click.echo(empty)
        return
    shown = console()
    if shown.is_terminal:
        shown.print(table)
        return
    with shown.capture() as captured:
        shown.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_listed(columns: Sequence[str], rows: Iterable[Sequence[object]], projects: Sequence[str], empty: str) -> None:
    """Like ``print_table``, with a last column for the project if there are several."""
    if len(set(projects)) > 1:
        columns, rows = (*columns, "project"), [(*row, project) for row, project in zip(rows, projects, strict=True)]
    print_table(columns, rows, empty)


def styled(status: str) -> Text:
    """A status in words, with its colour."""
    return Text(status.replace("_", " "), style=STATUS_STYLES.get(status, ""))


def when(seconds: float | None) -> str:
    """Local date and time; a dash for None."""
    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}"


@contextmanager
def busy(label: str) -> Iterator[None]:
    """A spinner on stderr; if stderr is not a terminal, the label as a line."""
    shown = console(stderr=True)
    if not shown.is_terminal:
        click.echo(label, err=True)
        yield
        return
    with shown.status(label):
        yield


@contextmanager
def steps(label: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr, called with (done, total, step); if stderr is not a terminal, the label as a line."""
    shown = console(stderr=True)
    if not shown.is_terminal:
        click.echo(label, err=True)
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shown, transient=True) as progress:
        task = progress.add_task(label, total=None)

        def report(done: int, total: int, step: str) -> None:
            progress.update(task, completed=done, total=total, description=f"{label}: {step}")

        yield report


_TRANSFERS = {"hash": "hashing the model", "send": "sending the model", "fetch": "fetching the model"}


@contextmanager
def transfers(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, if it is a terminal, for each step of a model's transfer; called like ``operator.Steps``.

    ``label`` is shown above the bars until the end, since the server takes seconds to examine a private job.
    """
    shown = console(stderr=True)
    if not shown.is_terminal:
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns)
    with Live(Group(Spinner("dots", Text(label)), progress), console=shown, transient=True):
        tasks: dict[str, TaskID] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(_TRANSFERS[step], total=total)
            progress.update(tasks[step], completed=done)

        yield show
