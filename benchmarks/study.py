"""From a checkout to your own model over four processes: the commands of docs/study.md, unchanged.

The commands come from the section "In eight commands": the environment, the installation with its downloads, the study,
the server in its own terminal, tokens, three participants, the run and its best model. Each runs in a terminal, which
also measures its silences. A smoke run skips environment and installation, and uses free ports.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.options import Options, progress
from benchmarks.terminal import Terminal

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "study.md"
MOST_COMMANDS, MOST_MINUTES, MOST_SILENT_S = 8, 3.0, 1.0
SITES = 3
_SERVER, _PARTICIPANTS = "atoll server start", "for n in"
_TIMEOUT_S = 1800.0


@dataclass
class Walk:
    """The times of the commands.

    Attributes:
        seconds: of each command, in their order.
        silences_s: the longest silence of each of Atoll's commands, without pip's.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    silences_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, command: str) -> Iterator[None]:
        """Add the seconds of a block to those of the command."""
        progress(command)
        began = time.monotonic()
        yield
        self.seconds[command] = time.monotonic() - began


def run(options: Options) -> list[Figure]:
    """Figures of all commands; a smoke run skips the installation."""
    commands = documented(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        walk = _walked_here(commands[2:], Path(folder)) if options.smoke else _walked(commands, Path(folder))
    return _figures(commands, walk, options.command("study"))


def documented(page: str) -> list[str]:
    """The commands of the section, one per line.

    Raises:
        ValueError: if the page has no such section.
    """
    found = re.search(r"^## In eight commands\n.*?^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{PAGE.name} has no section `In eight commands` with commands")
    return found[1].splitlines()


def _walked(commands: list[str], folder: Path) -> Walk:
    """All commands, in a clone of the commit."""
    checkout = folder / "atoll"
    clone = ["git", "clone", "--quiet", str(ROOT), str(checkout)]
    subprocess.run(clone, check=True)
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["PATH"] = f"{checkout}/.venv/bin{os.pathsep}{environment['PATH']}"  # as activation does
    return _performed(commands, checkout, environment)


def _walked_here(commands: list[str], folder: Path) -> Walk:
    """The commands after the installation, with this environment."""
    here = [f"{one} {_free_ports()}" if one.startswith(_SERVER) else one for one in commands]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return _performed(here, folder, {**os.environ, "PATH": path})


def _performed(commands: list[str], folder: Path, environment: dict[str, str]) -> Walk:
    walk = Walk()
    with contextlib.ExitStack() as stack:
        for command in commands:
            with walk.timed(command):
                terminal = Terminal(command, folder, environment)
                stack.callback(terminal.close)
                _wait(terminal, command)
            if "atoll " in command:
                walk.silences_s[command] = terminal.silence_s
            entered = re.search(r"&& cd (\S+)$", command)
            folder = folder / entered[1] if entered else folder
    return walk


def _wait(terminal: Terminal, command: str) -> None:
    """Wait as a reader does: until the server serves, the participants are connected, other commands have ended."""
    if command.startswith(_SERVER):
        terminal.wrote("serving on", _TIMEOUT_S)
        return
    terminal.ended(_TIMEOUT_S)
    if command.startswith(_PARTICIPANTS):
        terminal.wrote("connected to", _TIMEOUT_S, SITES)


def _figures(commands: list[str], walk: Walk, command: str) -> list[Figure]:
    whole_s, silent = sum(walk.seconds.values()), max(walk.silences_s, key=walk.silences_s.__getitem__)
    return [
        Figure.at_most("checkout to own model over 4 processes", len(commands), "commands", MOST_COMMANDS, command),
        Figure.at_most("  machine time, with the installation", whole_s / 60, "min", MOST_MINUTES, command),
        *(Figure.stated(f"  `{one}`", seconds, "s", command) for one, seconds in walk.seconds.items()),
        Figure.at_most(f"longest silence, in `{silent}`", walk.silences_s[silent], "s", MOST_SILENT_S, command),
    ]


def _free_ports() -> str:
    """An option for free ports, and one for no metrics port."""
    from tests.ports import free_ports  # noqa: PLC0415 - of a checkout, as the commands

    return f"--port {free_ports()} --no-metrics"
