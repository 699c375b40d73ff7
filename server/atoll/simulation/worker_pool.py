"""Runners of tasks: one in this process, or one in each worker process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from itertools import islice
from typing import Protocol

from atoll.server.aggregation import PartialSum
from atoll.server.errors import ServerError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.node_api import Node
from atoll.simulation.task_runner import TaskRunner
from atoll.simulation.tasks import Facts, Opening, Outcome, TaskRequest

Key = tuple[str, int, int]
"""Run, round and attempt."""


class WorkerPool(Protocol):
    """Runs tasks, and holds the sums of their updates."""

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes on which the coordinator finds the sums."""
        ...

    async def facts(self, participants: Mapping[str, int | str]) -> dict[str, Facts]:
        """The declarations of these participants, each given with its seed."""
        ...

    async def open(self, opening: Opening) -> None:
        """Announce a round's tasks."""
        ...

    def expect(self, key: Key, requests: Sequence[TaskRequest]) -> None:
        """Announce tasks whose outcomes will be requested, in any order; idle workers may begin them."""
        ...

    async def outcome(self, key: Key, request: TaskRequest) -> tuple[str, Outcome]:
        """The outcome of a task, which runs now if it was not announced, and the node that holds its update.

        Raises:
            RoundOverError: if its round was forgotten or dropped before it began.
        """
        ...

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Forget updates; see ``TaskRunner.forget``."""
        ...

    async def close(self) -> None:
        """Close every participant and end every process."""
        ...


class InlinePool:
    """One runner, in this process and thread: a task runs when its outcome is requested.

    Args:
        runner: runs the tasks.
        batched: number of announced tasks to train in one call; 1: each alone.
    """

    def __init__(self, runner: TaskRunner, batched: int = 1) -> None:
        self._runner = runner
        self._batched = batched
        self._expected: dict[Key, dict[str, TaskRequest]] = {}
        self.nodes = (InlineNode("inline", runner),)

    async def facts(self, participants: Mapping[str, int | str]) -> dict[str, Facts]:
        """See ``WorkerPool``."""
        return {name: self._runner.facts(name, seed) for name, seed in participants.items()}

    async def open(self, opening: Opening) -> None:
        """See ``WorkerPool``."""
        self._runner.open(opening)

    def expect(self, key: Key, requests: Sequence[TaskRequest]) -> None:
        """See ``WorkerPool``."""
        if self._batched > 1:
            self._expected[key] = {one.participant: one for one in requests}

    async def outcome(self, key: Key, request: TaskRequest) -> tuple[str, Outcome]:
        """See ``WorkerPool``."""
        waiting = self._expected.get(key, {})
        if request.participant in waiting:
            together = list(islice(waiting.values(), self._batched))
            for one in together:
                del waiting[one.participant]
            self._runner.train_together(key, together)
        return self.nodes[0].name, self._runner.work(key, request)

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """See ``WorkerPool``."""
        self._expected = {key: one for key, one in self._expected.items() if key[0] != run or key[1:] > through}
        self._runner.forget(run, through, keep)

    async def close(self) -> None:
        """See ``WorkerPool``."""
        self._runner.close()


class InlineNode:
    """The sums of the runner in this process, for the coordinator."""

    def __init__(self, name: str, runner: TaskRunner) -> None:
        self.name = name
        self._runner = runner

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """See ``Node``: an update is already in the sum, or waits for ``partial``."""

    @contextlib.asynccontextmanager
    async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
        """See ``Node``."""
        yield self._runner.partial(key, items)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """See ``Node``."""
        self._runner.drop(run, (round_number, attempt))

    async def drop_run(self, run: str) -> None:
        """See ``Node``."""
        self._runner.drop(run, (1 << 62, 0))

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """See ``Node``: there are none."""
