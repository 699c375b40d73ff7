"""Start the processes that a benchmark measures or needs.

A benchmark starts each as a user would. A smoke run forks them from one process that has loaded Atoll, because
imports are most of what a short run costs (``tests/system/forked.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.system.forked import Fork

ATOLL = [sys.executable, "-c", "from atoll.client.cli import main; main()"]
ROOT = Path(__file__).parents[1]
_STANDARD_ERROR = 2


class Process(Protocol):
    """What is used of ``subprocess.Popen``; a fork has it too."""

    @property
    def pid(self) -> int:
        """Its number."""

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended."""

    def send_signal(self, number: int, /) -> None:
        """Send it a signal, if it still runs."""

    def terminate(self) -> None:
        """Ask it to end, if it still runs."""

    def kill(self) -> None:
        """End it as ``kill -9`` does, if it still runs."""


class Piped(Process, Protocol):
    """A process whose standard input and output are pipes."""

    @property
    def stdin(self) -> IO[str] | None:
        """What it reads."""

    @property
    def stdout(self) -> IO[str] | None:
        """What it writes."""


@dataclass
class _Ways:
    """How this program starts processes."""

    forks: bool = False


_WAYS = _Ways()


@contextmanager
def forks(*, wanted: bool) -> Iterator[None]:
    """A context in which processes are forked, if that is wanted."""
    before, _WAYS.forks = _WAYS.forks, wanted
    try:
        yield
    finally:
        _WAYS.forks = before


def start(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes],
    standard_input: int | None = None,
    keep_open: Sequence[int] = (),
    folder: Path | None = None,
) -> subprocess.Popen[bytes] | Fork:
    """Start a process whose output goes to files.

    Args:
        arguments: the command line.
        environment: the whole environment.
        output: a file for its standard output.
        errors: a file for its standard error.
        standard_input: a descriptor; None: nothing to read.
        keep_open: descriptors that it inherits.
        folder: its working directory; None: that of this process.
    """
    if (words := _request(arguments)) is not None:
        from tests.system.forked import Fork  # noqa: PLC0415 - of the extra `dev`

        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - not a path
            read = nothing.fileno() if standard_input is None else standard_input
            standard = (read, output.fileno(), errors.fileno())
            return Fork(_kind(words), words, standard, environment, folder or Path.cwd(), keep_open)
    return subprocess.Popen(
        arguments,
        env=environment,
        pass_fds=keep_open,
        stdin=standard_input,
        stdout=output,
        stderr=errors,
        cwd=folder,
    )


@contextmanager
def piped(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Piped]:
    """A process whose standard input and output are pipes of text; it is killed when the context ends.

    Args:
        arguments: the command line, which runs in the checkout's folder.
        environment: the whole environment; None: that of this process.
    """
    process = _piped(arguments, os.environ if environment is None else environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _piped(arguments: Sequence[str], environment: Mapping[str, str]) -> Piped:
    if (words := _request(arguments)) is not None:
        from tests.system.forked import Forked  # noqa: PLC0415 - of the extra `dev`

        return Forked(_kind(words), words, _STANDARD_ERROR, environment, ROOT)
    return subprocess.Popen(
        arguments, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def finished(
    arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float, folder: Path | None = None
) -> bytes:
    """Run a command in a folder, or in this process's; return its standard output.

    Raises:
        RuntimeError: if it fails, with the end of its standard error.
        subprocess.TimeoutExpired: if it does not end in time.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start(arguments, environment=environment, output=output, errors=errors, folder=folder)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        output.seek(0)
        errors.seek(0)
        if code:
            said = errors.read().decode("utf-8", "replace")[-2000:]
            raise RuntimeError(f"{' '.join(arguments)} ended with {code}: {said}")
        return output.read()


@dataclass(frozen=True)
class Used:
    """The standard output of a command, its processor seconds and its peak memory."""

    output: bytes
    processor_s: float
    peak_kib: int


def used(arguments: Sequence[str], environment: Mapping[str, str]) -> Used:
    """Run a command whose resources are a figure; its errors are shown.

    Raises:
        RuntimeError: if it fails.
    """
    with tempfile.TemporaryFile() as output, open(_STANDARD_ERROR, "wb", closefd=False) as errors:
        process = start(arguments, environment=environment, output=output, errors=errors)
        if isinstance(process, subprocess.Popen):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = code = os.waitstatus_to_exitcode(status)
            processor_s, peak_kib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss
        else:
            code = process.wait()
            processor_s, peak_kib = process.processor_s, process.peak_kib
        if code:
            raise RuntimeError(f"{' '.join(arguments)} ended with {code}")
        output.seek(0)
        return Used(output.read(), processor_s, peak_kib)


def _request(arguments: Sequence[str]) -> list[str] | None:
    """The command line for the forker, if the process is to be a fork."""
    if not _WAYS.forks:
        return None
    if list(arguments[: len(ATOLL)]) == ATOLL:
        return ["atoll", *arguments[len(ATOLL) :]]
    return list(arguments) if list(arguments[:2]) == [sys.executable, "-m"] else None


def _kind(words: Sequence[str]) -> str:
    """Which forker has loaded what this command needs."""
    return "silo" if words[1] == "silo" or words[2].startswith("benchmarks.silo.") else "server"
