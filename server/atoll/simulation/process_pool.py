"""Worker processes: tasks are pushed to them, longest first, and each returns one partial sum a round."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from atoll.server.errors import NotFoundError, ServerError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.file_node import FileNode
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.node_api import Node
from atoll.simulation.errors import SetupError, WorkerError
from atoll.simulation.frames import opening_to, sum_to
from atoll.simulation.gpus import gpu_shares
from atoll.simulation.inline import InlineExecutor
from atoll.simulation.task_queue import QueuedTask, TaskQueue
from atoll.simulation.task_runner import TaskRunner
from atoll.simulation.tasks import Facts, Opening, Outcome, TaskRequest
from atoll.simulation.virtual_time import virtual_loop
from atoll.simulation.worker_link import WorkerLink
from atoll.simulation.worker_pool import Key
from atoll.simulation.worker_process import forked
from atoll.simulation.workers import Workers

DEEPEST = 32
"""Tasks queued at one worker, so that it does not wait for the next one."""
SHORT_S = 0.02
"""Tasks with a total time up to this are given to a worker at once."""
_FACTS = 256


class ProcessPool:
    """Forked worker processes; see ``WorkerPool``.

    Args:
        runner: is forked into every worker.
        workers: their number and GPU shares.
        folder: for partial sums in transfer.

    Raises:
        SetupError: if the requested GPUs are missing; no worker is forked then.
    """

    def __init__(self, runner: TaskRunner, workers: Workers, folder: Path) -> None:
        self._gpus = gpu_shares(workers)
        self._links: list[WorkerLink] = []
        connections: list[socket.socket] = []
        for number in range(workers.count):
            pid, connection = forked(runner, connections)
            connections.append(connection)
            self._links.append(WorkerLink(f"worker-{number}", pid, connection, self._done))
        self._folder = folder
        self._queue = TaskQueue()
        self._expected: dict[tuple[Key, str], QueuedTask] = {}
        self._open = False

    @property
    def nodes(self) -> Sequence[Node]:
        """See ``WorkerPool``."""
        executor = InlineExecutor()
        return [FileNode(link.name, _Calls(link), self._folder, executor) for link in self._links]

    async def facts(self, participants: Mapping[str, int | str]) -> dict[str, Facts]:
        """See ``WorkerPool``."""
        await self._opened()
        everyone, asked = list(participants.items()), []
        for place, start in enumerate(range(0, len(everyone), _FACTS)):
            link = self._links[place % len(self._links)]
            names = everyone[start : start + _FACTS]
            link.participants.update(name for name, _ in names)
            asked.append(link.ask("facts", {"of": names}))
        with virtual_loop().held():
            answers = await asyncio.gather(*asked)
        found = [Facts(examples, can_evaluate) for answer in answers for examples, can_evaluate in answer]
        return {name: one for (name, _), one in zip(everyone, found, strict=True)}

    async def open(self, opening: Opening) -> None:
        """See ``WorkerPool``."""
        await self._opened()
        message = opening_to(opening)
        for link in self._links:
            link.send("open", message)

    def expect(self, key: Key, requests: Sequence[TaskRequest]) -> None:
        """See ``WorkerPool``: the longest first, so that no worker is left with a long one at the end."""
        for task in self._queue.add(key, requests):
            self._expected[task.at] = task
        self._feed()

    async def outcome(self, key: Key, request: TaskRequest) -> tuple[str, Outcome]:
        """See ``WorkerPool``."""
        if (key, request.participant) not in self._expected:
            self.expect(key, [request])
        task = self._expected.pop((key, request.participant))
        task.awaited = True
        if task.done.done():
            return task.done.result()
        with virtual_loop().held():
            return await task.done

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """See ``WorkerPool``; tasks of these rounds that no worker has begun are cancelled."""
        self._queue.drop(run, through)
        self._expected = {at: task for at, task in self._expected.items() if at[0][0] != run or at[0][1:] > through}
        for link in self._links:
            link.send("forget", {"run": run, "through": list(through), "keep": [list(one) for one in keep]})

    async def close(self) -> None:
        """See ``WorkerPool``."""
        for link in self._links:
            link.close()
        for link in self._links:
            _reap(link.pid)

    async def _opened(self) -> None:
        if not self._open:
            self._open = True
            for link in self._links:
                await link.open()
            given = [link.ask("gpu", asdict(one)) for link, one in zip(self._links, self._gpus, strict=False)]
            with virtual_loop().held():
                await asyncio.gather(*given)

    def _feed(self) -> None:
        """Assign tasks until every worker has enough queued."""
        given: defaultdict[WorkerLink, list[QueuedTask]] = defaultdict(list)
        while len(self._queue):
            link = min(self._links, key=lambda one: len(one.tasks) + len(given[one]))
            if len(link.tasks) + len(given[link]) >= self._depth():
                break
            given[link].append(self._queue.next(link.participants, len(self._links)))
        for link, tasks in given.items():
            if tasks:
                link.give(tasks)

    def _depth(self) -> int:
        """Number of tasks to queue at a worker: fewer towards the end of a round, unless they are short."""
        mean_s = self._queue.mean_s
        short = int(SHORT_S / mean_s) if mean_s > 0 else 0
        return max(2, min(DEEPEST, max(short, len(self._queue) // (2 * len(self._links)))))

    def _done(self, outcomes: Sequence[Outcome]) -> None:
        """Handle finished tasks of a worker: learn their duration, and assign others."""
        for one in outcomes:
            self._queue.took(one.participant, one.seconds)
        self._feed()


@dataclass(frozen=True)
class _Calls:
    """A worker's sums, for the coordinator's pool; see ``file_node.RemoteCalls``."""

    link: WorkerLink = field(repr=False)

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """Nothing to fold: an update is already in the sum, or waits for ``write_partial``."""

    async def write_partial(self, key: SumKey, items: Sequence[FoldItem], path: Path) -> None:
        """Make the worker write its sum."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with virtual_loop().held():
                await self.link.ask("partial", {**sum_to(key, items), "path": str(path)})
        except (WorkerError, SetupError) as error:
            raise NotFoundError("spool.missing", str(error)) from error

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """Forget sums."""
        self.link.send("drop", {"run": run, "through": [round_number, attempt]})

    async def drop_run(self, run: str) -> None:
        """Forget every sum of a run."""
        self.link.send("drop", {"run": run, "through": [1 << 62, 0]})

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """There are none."""


def load_what_training_loads() -> None:
    """Load PyTorch's 800 modules for an optimiser's first use before the fork, so that no worker loads its own copy."""
    if "torch" in sys.modules:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch._dynamo")


def _reap(pid: int) -> None:
    """Wait for a worker whose socket is closed."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return
