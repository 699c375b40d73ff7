"""Who does the tasks: one bench in this process, or one in each worker process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

from atoll.server.aggregation import PartialSum
from atoll.server.errors import ServerError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.node_pool import Node
from atoll.simulation.bench import Bench, Errand, Facts, Opening, Outcome

Key = tuple[str, int, int]
"""Run, round and attempt."""


class Crew(Protocol):
    """Does tasks, and holds the sums of what they give."""

    @property
    def nodes(self) -> Sequence[Node]:
        """Where the coordinator finds the sums."""
        ...

    async def facts(self, participants: Mapping[str, int | str]) -> dict[str, Facts]:
        """What these participants declare, each given with its seed."""
        ...

    async def open(self, opening: Opening) -> None:
        """Tasks of a round come next."""
        ...

    def expect(self, key: Key, errands: Sequence[Errand]) -> None:
        """Announce tasks whose outcomes will be asked for, in any order; idle workers may begin them."""
        ...

    async def outcome(self, key: Key, errand: Errand) -> tuple[str, Outcome]:
        """What became of a task, done now if it was not expected; and the node that holds its update."""
        ...

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Forget updates; see ``Bench.forget``."""
        ...

    async def close(self) -> None:
        """Close every participant and end every process."""
        ...


class InlineCrew:
    """One bench, in this process and thread: a task is done when its outcome is asked for."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.nodes = (BenchNode("inline", bench),)

    async def facts(self, participants: Mapping[str, int | str]) -> dict[str, Facts]:
        """See ``Crew``."""
        return {name: self._bench.facts(name, seed) for name, seed in participants.items()}

    async def open(self, opening: Opening) -> None:
        """See ``Crew``."""
        self._bench.open(opening)

    def expect(self, key: Key, errands: Sequence[Errand]) -> None:
        """See ``Crew``."""

    async def outcome(self, key: Key, errand: Errand) -> tuple[str, Outcome]:
        """See ``Crew``."""
        return self.nodes[0].name, self._bench.work(key, errand)

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """See ``Crew``."""
        self._bench.forget(run, through, keep)

    async def close(self) -> None:
        """See ``Crew``."""
        self._bench.close()


class BenchNode:
    """The sums of the bench in this process, as the coordinator asks for them."""

    def __init__(self, name: str, bench: Bench) -> None:
        self.name = name
        self._bench = bench

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """See ``Node``: an update is in the sum since it was made, or waits for ``partial``."""

    @contextlib.asynccontextmanager
    async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
        """See ``Node``."""
        yield self._bench.partial(key, items)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """See ``Node``."""
        self._bench.drop(run, (round_number, attempt))

    async def drop_run(self, run: str) -> None:
        """See ``Node``."""
        self._bench.drop(run, (1 << 62, 0))

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """See ``Node``: there are none."""
