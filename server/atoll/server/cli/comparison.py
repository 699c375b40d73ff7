"""Comparisons of runs on the screen: a table or JSON, and the page."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.operator import Comparison
from atoll.server.cli.errors import writing
from atoll.server.cli.output import busy, print_json, print_table
from atoll.text.figures import in_bytes


def show_comparison(comparison: Comparison, output: Path | None, *, json_output: bool) -> None:
    """Print the table of variants, or all runs as JSON; write the page if ``output`` names a file."""
    if json_output:
        print_json({"runs": comparison.rows(), "variants": comparison.variants})
    else:
        headings, rows = comparison.table()
        print_table(headings, rows, "no run was played")
    if output is None:
        return
    with busy("drawing the page"):
        page = comparison.page()
    with writing(output):
        output.write_text(page, encoding="utf-8")
    click.echo(f"{output}: {in_bytes(len(page.encode()))}", err=True)
