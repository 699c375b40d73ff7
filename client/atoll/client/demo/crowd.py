"""Many demo participants in one process, each with its own shard, identity, state and stream.

python -m atoll.client.demo.crowd DATA STATE TOKENS     TOKENS: lines of "NUMBER JOIN-TOKEN", DATA: shard-NUMBER.npz
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from pathlib import Path

from atoll.client.demo.digits import Digits
from atoll.client.events import Connected, Event, log_event
from atoll.client.participate import Access, serve

AT_ONCE = 8
"""Participants that enrol and connect at the same time."""
_FDS_PER_PARTICIPANT = 6


class Crowd:
    """One participant for every shard that has a token.

    Args:
        data: folder of the shards.
        state: folder of the participants' state directories.
        tokens: join tokens by shard number.
    """

    def __init__(self, data: Path, state: Path, tokens: dict[str, str]) -> None:
        self._data, self._state, self._tokens = data, state, tokens
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Take part until cancelled, or until one of them fails."""
        async with asyncio.TaskGroup() as group:
            for number, token in self._tokens.items():
                group.create_task(self._take_part(number, token))

    async def _take_part(self, number: str, token: str) -> None:
        arrived = asyncio.Event()

        def watch(event: Event) -> None:
            if isinstance(event, Connected):
                arrived.set()
            log_event(event)

        participant = Digits(str(self._data / f"shard-{number}.npz"))
        async with self._places:
            access = Access(token, state=self._state / number)
            serving = asyncio.create_task(serve(participant, access, observer=watch))
            coming = asyncio.create_task(arrived.wait())
            await asyncio.wait({serving, coming}, return_when=asyncio.FIRST_COMPLETED)
            coming.cancel()
        await serving


def read_tokens(path: Path) -> dict[str, str]:
    """Join tokens by shard number."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {line.split()[0]: line.split()[1] for line in lines}


async def _until_terminated(crowd: Crowd) -> None:
    taking_part = asyncio.create_task(crowd.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, taking_part.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await taking_part


def _raise_limit(participants: int) -> None:
    """Raise the limit on file descriptors for this many participants, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 128 + _FDS_PER_PARTICIPANT * participants
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main() -> None:
    """Take part with all tokens until terminated."""
    data, state, listed = map(Path, sys.argv[1:])
    tokens = read_tokens(listed)
    _raise_limit(len(tokens))
    asyncio.run(_until_terminated(Crowd(data, state, tokens)))


if __name__ == "__main__":
    main()
