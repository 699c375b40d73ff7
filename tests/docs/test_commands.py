"""Every ``atoll ...`` in the documents is a valid command, and the table of commands lists every command."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.docs.commands import PAGES, ROOT, SCRIPTS, Typed, arguments_of, check, paths_of, typed_in, words_of

COMMANDS = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [*PAGES, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_can_be_typed(path: Path) -> None:
    wrong = []
    for command in typed_in(path):
        try:
            check(command)
        except click.UsageError as error:
            wrong.append(f"{command.line}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)


def test_the_table_of_commands_names_each_command_and_no_other() -> None:
    table = COMMANDS[: COMMANDS.index("`RUN` is a run's id")]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    named = {" ".join(_path(span)) for cell in cells for span in re.findall(r"`([^`]+)`", cell)}
    assert named == set(paths_of())


def _path(span: str) -> list[str]:
    """The names of commands that a span begins with: ``atoll run model RUN -o FILE`` → run, model."""
    words = span.removeprefix("atoll ").split()
    return words[: next((at for at, word in enumerate(words) if not re.fullmatch(r"[a-z]+", word)), len(words))]


def test_commands_of_every_group_are_found() -> None:
    found = {command.arguments[0] for path in PAGES for command in typed_in(path) if command.whole}
    assert found >= {"client", "privacy", "run", "server", "silo", "token"}


def command_in(line: str) -> Typed:
    (arguments,) = [found for words in words_of(line) if (found := arguments_of(words)) is not None]
    return Typed(line, tuple(arguments), whole=True)


@pytest.mark.parametrize(
    "line",
    [
        "atoll serve start",
        "atoll server stort --port 7400",
        "/opt/atoll/bin/atoll run show latest --colour",
        "cd x && atoll token new --organisation",
        "docker run -p 7400:7400 atoll --advertise fl.example.org -p 7403:7403",
        "sudo -u atoll atoll server restore /backups/one /backups/two",
        "atoll server start --port seven",
        "atoll run model latest -o model.safetensors --round last",
        "atoll silo plan job.toml --gpus many",
        "atoll client start",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        check(command_in(line))


@pytest.mark.parametrize("line", ["atoll run show RUN --round N", "atoll silo plan JOB.toml --gpus 64 --gpu h100"])
def test_placeholders_pass(line: str) -> None:
    check(command_in(line))
