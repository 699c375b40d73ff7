"""Output of commands: JSON on request, tables otherwise."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 400
"""Width where the output is not a terminal: nothing is cut."""

json_option = click.option("--json", "json_output", is_flag=True, help="Print JSON.")


def print_json(value: object) -> None:
    """Print a value as JSON, indented."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Print a table; columns whose name ends in ``>`` contain numbers and are right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    shown = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    with shown.capture() as captured:
        shown.print(table)
    if title:
        click.echo(title)
    click.echo("\n".join(text.rstrip() for text in captured.get().splitlines()))
