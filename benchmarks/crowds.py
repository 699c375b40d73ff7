"""Crowds of participants in processes of their own, for benchmarks with many of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

from benchmarks.federation import Federation
from benchmarks.starting import Process

WARM = 50
"""Participants that connect before a measurement and leave again: what the first enrolments load, about 50 MB, is not
counted."""
LEAVE_S = 300.0
_TOKENS_PER_CALL = 1000


@contextmanager
def crowd(
    place: Federation, module: str, count: int, *more: str, name: str, per_process: int, start: int | None = None
) -> Iterator[list[IO[str]]]:
    """A context with participants, from when they are ready; yields the outputs of their processes.

    Args:
        place: with their server.
        module: the program; its arguments are a folder, a file of join tokens, a descriptor for its output, and
            ``more``.
        count: number of participants.
        more: further arguments.
        name: of folders and logs.
        per_process: number of participants in one process.
        start: descriptor that is the processes' standard input; closed here.

    Raises:
        RuntimeError: if a process does not get ready.
    """
    processes: list[Process] = []
    with ExitStack() as stack:
        try:
            outputs: list[IO[str]] = []
            for number, first in enumerate(range(0, count, per_process)):
                process, reading = _start(
                    place, module, min(per_process, count - first), more, f"{name}-{number}", start
                )
                processes.append(process)
                outputs.append(stack.enter_context(os.fdopen(reading)))
                expect(place, outputs[-1], "ready", f"{name}-{number}")
            if start is not None:
                os.close(start)
            yield outputs
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(LEAVE_S)


def expect(place: Federation, channel: IO[str], word: str, name: str = "") -> None:
    """Read a line that must be this word.

    Raises:
        RuntimeError: for another one, with the end of the log of that name.
    """
    if (line := channel.readline().strip()) != word:
        raise RuntimeError(f"{line!r} instead of {word!r}: {place.log(name)[-2000:] if name else ''}")


def _start(
    place: Federation, module: str, count: int, more: tuple[str, ...], name: str, start: int | None
) -> tuple[Process, int]:
    folder = place.place / name
    folder.mkdir()
    tokens: list[str] = []
    while len(tokens) < count:
        made = place.call("token", "new", "--count", str(min(_TOKENS_PER_CALL, count - len(tokens))))
        tokens += made["tokens"]
    (folder / "tokens").write_text("\n".join(tokens))
    reading, writing = os.pipe()
    command = [sys.executable, "-m", module, str(folder), str(folder / "tokens"), str(writing), *more]
    process = place.start_process(command, name, keep_open=(writing,), standard_input=start)
    os.close(writing)
    return process, reading
