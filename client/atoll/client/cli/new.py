"""``atoll new``: create the files of a new study."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import click

from atoll.client._study.frameworks import FRAMEWORKS, Framework
from atoll.client._study.project import write_study
from atoll.text.installing import install_hint


@click.group()
def new() -> None:
    """Write the files to begin with."""


@new.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--framework", type=click.Choice(sorted(FRAMEWORKS)), required=True, help="Framework of the participant.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the study's folder and files.")
def study(folder: Path, framework: str, *, as_json: bool) -> None:
    """Create a study in FOLDER: a participant, a job, statistics, an initial model, a test, a README with the commands.

    It runs unchanged, on bundled rows; participant.py shows where your own go. No file is overwritten.
    """
    chosen = FRAMEWORKS[framework]
    written = write_study(folder, chosen)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "framework": framework, "files": [str(one) for one in written]}))
        return
    for path in written:
        click.echo(path)
    click.echo(_next(folder, chosen), err=True)


def _next(folder: Path, framework: Framework) -> str:
    lines = [
        f"next: cd {folder}",
        "      atoll simulate job.toml --participants participant.py:Site --population 3",
        "then: README.md, for a server and separate sites",
    ]
    missing = [name for name in framework.modules if find_spec(name) is None]
    if missing:
        lines.insert(0, f"participant.py needs {' and '.join(missing)}: {install_hint(framework.extras)}")
    return "\n".join(lines)
