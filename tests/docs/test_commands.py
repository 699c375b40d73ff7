"""Every ``atoll ...`` that the pages tell somebody to type is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from atoll.client.cli.app import atoll

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:[\w/]+/)?atoll (?!\w+ \d)[a-z][^`]*)`")
"""But not what digests begin with, `atoll blob 1`."""
_NEW_COMMAND = {"|", "||", "&&", ";", "&", ">", "2>", ">>"}
_OF_IMAGE = ["server", "start"]  # the image's entry point


def lines_of(text: str) -> Iterator[str]:
    """What stands in a page as something to type, a line at a time; lines that go on after a backslash are one."""
    for block in _FENCE.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    yield from (" ".join(span.split()) for span in _INLINE.findall(_ANY_FENCE.sub("", text)))


def words_of(line: str) -> Iterator[list[str]]:
    """The words of each command in a line, without the comment behind them."""
    words = shlex.shlex(line.replace("…", "..."), posix=True, punctuation_chars="|&;<>")
    words.whitespace_split = True
    found: list[str] = []
    try:
        for word in words:
            if word in _NEW_COMMAND:
                yield found
                found = []
            else:
                found.append(word)
    except ValueError:  # a quotation that ends on another line: no command of ours
        return
    yield found


def arguments_of(words: list[str]) -> list[str] | None:
    """What follows ``atoll``; None if the line runs something else."""
    places = [at for at, word in enumerate(words) if word == "atoll" or word.endswith("bin/atoll")]
    if not places or places[-1] == len(words) - 1:
        return None
    rest = words[places[-1] + 1 :]
    if words[0] == "docker":
        if words[1] == "run" and "--entrypoint" not in words:
            return [*_OF_IMAGE, *rest]
        return rest if words[1] in ("run", "exec") and len(places) > 1 else None
    return rest


def commands_in(page: Path) -> list[tuple[str, list[str]]]:
    """Line and arguments of each ``atoll`` on a page."""
    return [
        (line, arguments)
        for line in lines_of(page.read_text(encoding="utf-8"))
        for words in words_of(line)
        if (arguments := arguments_of(words)) is not None
    ]


def check(arguments: list[str]) -> None:
    """Walk down the groups as the command line does, and run nothing.

    Raises:
        click.UsageError: for a command or option that there is not, a value missing, or a word too many.
    """
    command: click.Command = atoll
    context = click.Context(command, info_name="atoll")
    while True:
        _, rest, _ = command.make_parser(context).parse_args([*arguments])
        if not isinstance(command, click.Group):
            break
        if not rest:
            return
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"{context.command_path} has no command {rest[0]!r}")
        command, arguments = found, rest[1:]
        context = click.Context(command, parent=context, info_name=rest[0])
    if rest:
        raise click.UsageError(f"{context.command_path}: {rest} is too much")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_the_page_can_be_typed(page: Path) -> None:
    wrong = []
    for line, arguments in commands_in(page):
        try:
            check(arguments)
        except click.UsageError as error:
            wrong.append(f"{line}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)


def test_the_pages_name_commands_of_every_group() -> None:
    named = {arguments[0] for page in PAGES for _, arguments in commands_in(page)}
    assert named >= {"server", "client", "token", "participants", "run", "doctor", "demo"}


@pytest.mark.parametrize(
    "line",
    [
        "atoll serve start",
        "atoll server stort --port 7400",
        "/opt/atoll/bin/atoll run show latest --colour",
        "cd x && atoll token new --organisation",
        "docker run -p 7400:7400 atoll --advertise fl.example.org -p 7403:7403",
        "sudo -u atoll atoll server restore /backups/one /backups/two",
    ],
)
def test_a_command_that_there_is_not_is_found(line: str) -> None:
    (arguments,) = [found for words in words_of(line) if (found := arguments_of(words)) is not None]
    with pytest.raises(click.UsageError):
        check(arguments)
