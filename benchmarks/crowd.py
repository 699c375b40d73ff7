"""Many idle participants in one process, each with its own identity, state and check-in stream.

python -m benchmarks.crowd FOLDER TOKENS FD     enrols with each line of TOKENS, writes "ready" to FD once all are
connected
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from atoll.client import Access, Limits, Policy, serve
from atoll.client.events import Connected, Disconnected, Event
from benchmarks.participants import Idle

AT_ONCE = 8
"""Participants that enrol or connect at the same time; the benchmark measures an idle crowd, not its arrival."""
FDS_PER_PARTICIPANT = 4
"""File descriptors of a participant: its check-in stream, its transfers, the lock of its state, and one spare."""


class Crowd:
    """Starts the participants and reports when all of them are connected."""

    def __init__(self, folder: Path, tokens: Sequence[str], ready_fd: int) -> None:
        self._folder = folder
        self._ready_fd = ready_fd
        self._tokens = tokens
        self._connected = 0
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Take part until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number, token in enumerate(self._tokens):
                group.create_task(self._take_part(number, token))

    async def _take_part(self, number: int, token: str) -> None:
        arrived = asyncio.Event()

        def watch(event: Event) -> None:
            if isinstance(event, Connected) and not arrived.is_set():
                arrived.set()
                self._count()
            elif isinstance(event, Disconnected):
                print(f"participant {number}: {event.reason}", flush=True)

        async with self._places:
            access = Access(token, state=self._folder / str(number))
            serving = asyncio.create_task(
                serve(Idle("constant"), access, policy=Policy(), limits=Limits(), observer=watch)
            )
            coming = asyncio.create_task(arrived.wait())
            await asyncio.wait({serving, coming}, return_when=asyncio.FIRST_COMPLETED)
        await serving

    def _count(self) -> None:
        self._connected += 1
        if self._connected == len(self._tokens):
            os.write(self._ready_fd, b"ready\n")


async def _until_terminated(crowd: Crowd) -> None:
    taking_part = asyncio.create_task(crowd.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, taking_part.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await taking_part


def raise_limit(participants: int) -> None:
    """Raise the limit on file descriptors for this many participants, as far as the system allows.

    Raises:
        ValueError: if the limit is too low, naming it.
    """
    needed = 64 + FDS_PER_PARTICIPANT * participants
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ValueError(f"{participants} participants need {needed} file descriptors, {hard} are allowed: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def main() -> None:
    """Take part with all tokens until SIGTERM."""
    folder, listed, ready_fd = sys.argv[1:]
    tokens = Path(listed).read_text().split()
    raise_limit(len(tokens))
    asyncio.run(_until_terminated(Crowd(Path(folder), tokens, int(ready_fd))))


if __name__ == "__main__":
    main()
