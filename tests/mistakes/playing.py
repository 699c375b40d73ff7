"""Makes one mistake in this process, and keeps what is printed."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from atoll.client._study.frameworks import FRAMEWORKS
from atoll.client._study.project import write_study
from atoll.client.cli.app import run_cli
from tests.mistakes.table import Mistake

_DIFFERENT = (
    (re.compile(r"\b(?:line|lines) \d+"), "line N"),
    (re.compile(r"participant p[a-z2-7]{12}\b"), "participant ID"),
    (re.compile(r"^(?:\d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) ", re.MULTILINE), "TIME "),
    (re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", re.MULTILINE), "TIME "),
    (re.compile(r"join token t[a-z2-7]{12}\b"), "join token ID"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"^ +\d+ +(?:train|evaluate) .*\n", re.MULTILINE), ""),
    (re.compile(r" is -?[\d.]+ at "), " is NUMBER at "),
    (re.compile(r"after [\d.]+ s\b"), "after N s"),
    (re.compile(r"\.(py|toml):\d+"), r".\1:N"),
    (
        re.compile(
            r"(?:Traceback \(most recent call last\):\n(?:  .*\n)+\S.*\n+The above exception was .*\n+)*"
            r"Traceback \(most recent call last\):\n(?:  .*\n)+"
        ),
        "(traceback)\n",
    ),
)


def printed_by(mistake: Mistake, folder: Path, stands_for: Mapping[str, str]) -> tuple[int, str]:
    """The exit code, and what is printed on both streams, with names for what differs from one machine to the next."""
    study = folder / "wards"
    write_study(study, FRAMEWORKS["numpy"])
    for file, (old, new) in mistake.edits.items():
        _edit(study / file, old, new)
    command = mistake.command
    for name, value in stands_for.items():
        command = command.replace(name, value)
    with _inside(study):
        code, text = _run(shlex.split(command))
    return code, normal(text, {**stands_for, "FOLDER": str(study.resolve())})


def normal(text: str, stands_for: Mapping[str, str]) -> str:
    """Text without what differs between machines and tests."""
    for name, value in stands_for.items():
        text = text.replace(value, name)
    for pattern, name in _DIFFERENT:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    assert old in text, f"{path.name} has no {old!r}"
    path.write_text(text.replace(old, new, 1) if old else text + new, encoding="utf-8")


def _run(arguments: list[str]) -> tuple[int, str]:
    """Run the command line as a process does, errors of every kind included; a runner keeps both streams."""
    with CliRunner().isolation() as (_, _, both):
        code = run_cli(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        return code, both.getvalue().decode()


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """In a folder, with import path, modules, environment and logging afterwards as before."""
    before, path, modules = Path.cwd(), list(sys.path), set(sys.modules)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    environment = dict(os.environ)
    os.environ.update(COLUMNS="120", HOME=str(folder / "home"))
    for name in ("ATOLL_DATA", "ATOLL_SERVER", "ATOLL_CREDENTIALS", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        os.environ.pop(name, None)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
                del sys.modules[name]
        root.handlers[:] = handlers
        root.setLevel(level)
        os.environ.clear()
        os.environ.update(environment)
