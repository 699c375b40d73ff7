"""Commands that documents and example files give to a reader, compared with the real command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from atoll.client.cli.app import atoll

ROOT = Path(__file__).parents[2]
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
PAGES = [*(ROOT / name for name in ROOT_PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = [
    path
    for folder in ("deploy", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".sh", ".sbatch", ".service"}
]

_OF_COMMANDS = {"```", "```sh", "```bash", "```console"}
_ANY_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    (\S.*)$", re.MULTILINE)
_INLINE = re.compile(r"`((?:[\w/]+/)?atoll (?!\w+ \d)[a-z][^`]*)`")
"""Matches commands, but not the prefix of digests, `atoll blob 1`."""
_OPTIONAL = re.compile(r"\[(--[^\]]*)\]")
_NEW_COMMAND = {"|", "||", "&&", ";", "&", ">", "2>", ">>"}
_OF_IMAGE = ["server", "start"]  # the image's entry point
_PLACEHOLDER = re.compile(r"\$?\{?[A-Z][A-Z0-9_]*\}?(:[A-Z_]+)?$|\$.*|\.\.\.$")


@dataclass(frozen=True, slots=True)
class Typed:
    """One ``atoll`` command: its line, its words after ``atoll``, and whether it is meant to be typed as it stands."""

    line: str
    arguments: tuple[str, ...]
    whole: bool


def typed_in(path: Path) -> list[Typed]:
    """Every ``atoll`` command of a page or script; those in running text are not whole."""
    text = path.read_text(encoding="utf-8")
    spans = () if path.suffix != ".md" else _INLINE.findall(_ANY_FENCE.sub("", text))
    lines = [(line, True) for line in _blocks(path, text)]
    lines += [(" ".join(_OPTIONAL.sub(r"\1", span).split()), False) for span in spans]
    return [
        Typed(line, tuple(arguments), whole and words[0] != "docker")  # the image sets $ATOLL_DATA
        for line, whole in lines
        for words in words_of(line)
        if (arguments := arguments_of(words)) is not None
    ]


def _blocks(path: Path, text: str) -> Iterator[str]:
    """Lines of code, one for each command: a backslash joins a line with the next."""
    text = text.replace("\\\n", " ")
    if path.suffix != ".md":
        yield from text.replace("ExecStart=", "").splitlines()
        return
    for fence in _ANY_FENCE.findall(text):
        first, *lines, _last = fence.splitlines()
        if first in _OF_COMMANDS:
            yield from lines
    yield from (line for line in _INDENTED.findall(_ANY_FENCE.sub("", text)) if line.startswith("atoll "))


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
    except ValueError:  # a quotation that ends on another line: not one of our commands
        return
    yield found


def arguments_of(words: list[str]) -> list[str] | None:
    """Return the words after ``atoll``; None if the line runs something else."""
    places = [at for at, word in enumerate(words) if word == "atoll" or word.endswith("bin/atoll")]
    if not places or places[-1] == len(words) - 1:
        return None
    rest = words[places[-1] + 1 :]
    if words[0] == "kubectl":  # `--namespace atoll` is not one of our commands
        return rest if words[places[-1] - 1] == "--" else None
    if words[0] == "docker":
        if words[1] == "run" and "--entrypoint" not in words:
            return [*_OF_IMAGE, *rest]
        return rest if words[1] in ("run", "exec") and len(places) > 1 else None
    return rest


def check(command: Typed) -> None:
    """Resolve groups and options as the command line does, without running anything.

    Raises:
        click.UsageError: for a command or option that does not exist, a value missing or of the wrong kind, a word too
            many, and in a command that is whole for a required option or argument that is missing.
    """
    found, context, arguments = _leaf(list(command.arguments))
    if isinstance(found, click.Group):
        return
    values, rest, _ = found.make_parser(context).parse_args(arguments)
    if rest:
        raise click.UsageError(f"{context.command_path}: {rest} is too much")
    for parameter in found.params:
        given = values.get(parameter.name or "")
        if _is_given(given):
            _check_value(parameter, given, context)
        elif command.whole and parameter.required and not {"-h", "--help"} & set(arguments):
            raise click.UsageError(f"{context.command_path}: {parameter.human_readable_name} is missing")


def _leaf(arguments: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that the words lead to, and what follows its name.

    Contexts have the commands' settings: click keeps the option for help that it makes for a command's first context.
    """
    command: click.Command = atoll
    context = click.Context(command, info_name="atoll", **command.context_settings)
    while isinstance(command, click.Group):
        _, rest, _ = command.make_parser(context).parse_args(arguments)
        if not rest:
            break
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"{context.command_path} has no command {rest[0]!r}")
        command, arguments = found, rest[1:]
        context = click.Context(command, parent=context, info_name=rest[0], **command.context_settings)
    return command, context, arguments


def _is_given(value: object) -> bool:
    """Click's parser leaves out what was not typed, or sets it to None or to its own sentinel."""
    return value is not None and value != () and type(value).__name__ != "Sentinel"


def _check_value(parameter: click.Parameter, value: object, context: click.Context) -> None:
    """Convert each word as the command would, but for placeholders (``RUN``) and files."""
    if isinstance(parameter.type, (click.Path, click.File)) or not isinstance(value, (str, list, tuple)):
        return
    for word in [value] if isinstance(value, str) else value:
        if isinstance(word, str) and not _PLACEHOLDER.match(word):
            parameter.type.convert(word, parameter, context)


def paths_of(command: click.Command = atoll, above: str = "") -> Iterator[str]:
    """Every command that can be run, as typed after ``atoll``: ``run list``."""
    if not isinstance(command, click.Group):
        yield above
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from paths_of(found, f"{above} {name}".strip())
