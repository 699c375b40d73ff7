"""Run several simulations at the same time, each in its own forked process."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from atoll.processes.parents import end_with_parent
from atoll.simulation.progress import Progress

MOST_JOBS = 64
_RELEASED = struct.Struct("<I")

Play = Callable[[Progress], object]
"""Executes a run, which calls its argument with the number of released and of all rounds."""


@dataclass
class _Process:
    pid: int
    reader: int
    released: int = 0
    status: int | None = field(default=None)


def played_aside(
    plays: Sequence[Play], jobs: int, progress: Callable[[int, int], object] | None = None
) -> Generator[int]:
    """Execute runs in processes, at most ``jobs`` at a time.

    Args:
        plays: the runs.
        jobs: maximum number of concurrent runs.
        progress: called with the number of rounds released by all runs, and the index of the run that released one.

    Yields:
        Each process's exit status, in the order of the runs: 0, 1 if it raised, or a negative signal number. The
        exception itself is lost; a simulation with a folder raises it again.
    """
    running: dict[int, _Process] = {}
    begun = 0
    try:
        for place in range(len(plays)):
            while (found := running.get(place)) is None or found.status is None:
                while begun < len(plays) and sum(one.status is None for one in running.values()) < jobs:
                    running[begun] = _begun(plays[begun])
                    begun += 1
                for heard in _wait(running):
                    if progress is not None:
                        progress(sum(one.released for one in running.values()), heard)
            yield found.status
    finally:
        for one in running.values():
            if one.status is None:
                _end(one)


def _begun(play: Play) -> _Process:
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold nothing that the run uses
        pid = os.fork()
    if pid:
        os.close(writer)
        return _Process(pid, reader)
    status = 1
    try:
        os.close(reader)
        end_with_parent(parent)
        play(lambda released, _: os.write(writer, _RELEASED.pack(released)))
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code, which finds the error again
        status = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _wait(running: dict[int, _Process]) -> Iterator[int]:
    """Wait until a process has released a round or has ended; return the indices of those that released one."""
    with selectors.DefaultSelector() as selector:
        for place, one in running.items():
            if one.status is None:
                selector.register(one.reader, selectors.EVENT_READ, place)
        for key, _ in selector.select():
            one = running[key.data]
            heard = os.read(one.reader, 1024 * _RELEASED.size)
            if heard:
                (one.released,) = _RELEASED.unpack_from(heard, len(heard) - _RELEASED.size)
                yield key.data
            else:
                os.close(one.reader)
                one.status = os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1])


def _end(one: _Process) -> None:
    """End a process that is no longer needed; its workers end with it."""
    os.close(one.reader)
    with contextlib.suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(one.pid, 0)
