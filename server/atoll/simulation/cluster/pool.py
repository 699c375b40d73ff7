"""Workers on Ray: batches of tasks are pushed to actors, and their sums are added up in a tree.

Unfinished tasks of a lost worker go to other workers at once. Updates that it had summed are recomputed when the round
is summed, because only then the coordinator says which updates count. A repeated task gives the same bits, and integer
sums do not depend on the order of additions, so the model is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from atoll.server.ingest.node_api import Node
from atoll.simulation.cluster.actor import Setup
from atoll.simulation.cluster.connection import join, leave
from atoll.simulation.cluster.link import Link, LostError
from atoll.simulation.cluster.node import ClusterNode
from atoll.simulation.cluster.ray_actors import RayActors
from atoll.simulation.cluster.ray_workers import RayWorkers
from atoll.simulation.cluster.records import Records
from atoll.simulation.errors import SimulationError, WorkerError
from atoll.simulation.task_queue import QueuedTask, TaskQueue
from atoll.simulation.tasks import Facts, Opening, Outcome, RoundOverError, TaskRequest
from atoll.simulation.virtual_time import held
from atoll.simulation.worker_pool import Key

NODE = "cluster"
"""Name of the single node that the coordinator sees."""
IN_HAND = 2
"""Batches queued at a worker, so that it does not wait for the next one."""
_FACTS = 256


class RayPool:
    """Ray actors; see ``WorkerPool``.

    Args:
        setup: settings of every worker.
        workers: their number and resources.

    Raises:
        SetupError: if Ray cannot be joined, the workers cannot start, or the factory cannot be sent to them.
    """

    def __init__(self, setup: Setup, workers: RayWorkers) -> None:
        self._joined = join(workers)
        try:
            self._actors = RayActors(setup, workers)
        except BaseException:
            self._leave()
            raise
        self._actors.changed, self._actors.failed = self._go_on, self._fail
        self._records = Records()
        self._queue = TaskQueue()
        self._expected: dict[tuple[Key, str], QueuedTask] = {}
        self._pushing: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None

    @property
    def nodes(self) -> Sequence[Node]:
        """See ``WorkerPool``: a single node, whose sum is that of all workers."""
        return [ClusterNode(NODE, self._actors, self._records, self._again)]

    async def facts(self, participants: Mapping[str, int | str]) -> dict[str, Facts]:
        """See ``WorkerPool``."""
        everyone = list(participants.items())
        parts = [everyone[start : start + _FACTS] for start in range(0, len(everyone), _FACTS)]
        with held():
            answers = await asyncio.gather(*(self._facts(part, place) for place, part in enumerate(parts)))
        return {
            name: one
            for part, found in zip(parts, answers, strict=True)
            for (name, _), one in zip(part, found, strict=True)
        }

    async def open(self, opening: Opening) -> None:
        """See ``WorkerPool``."""
        self._actors.open(opening)

    def expect(self, key: Key, requests: Sequence[TaskRequest]) -> None:
        """See ``WorkerPool``."""
        for task in self._queue.add(key, requests):
            self._expected[task.at] = task
        self._go_on()

    async def outcome(self, key: Key, request: TaskRequest) -> tuple[str, Outcome]:
        """See ``WorkerPool``."""
        if (key, request.participant) not in self._expected:
            self.expect(key, [request])
        task = self._expected.pop((key, request.participant))
        task.awaited = True
        if task.done.done():
            return task.done.result()
        with held():
            return await task.done

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """See ``WorkerPool``; tasks of these rounds that no worker has begun are cancelled."""
        self._queue.drop(run, through)
        self._expected = {at: task for at, task in self._expected.items() if at[0][0] != run or at[0][1:] > through}
        self._records.forget(run, through, keep)
        self._actors.forget(run, through, keep)

    async def close(self) -> None:
        """See ``WorkerPool``."""
        for task in self._pushing:
            task.cancel()
        await asyncio.gather(*self._pushing, return_exceptions=True)
        try:
            with held():
                await self._actors.close()
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._joined:
            leave()

    async def _facts(self, of: Sequence[tuple[str, int | str]], place: int) -> Sequence[Facts]:
        while self._actors.links:
            link = self._actors.links[place % len(self._actors.links)]
            link.participants.update(name for name, _ in of)
            try:
                return await link.ask("facts", of)  # type: ignore[no-any-return]
            except LostError as error:
                self._actors.lose(link, error)
        raise WorkerError("every worker was lost while participants were asked for their number of examples")

    async def _again(self, tasks: Iterable[tuple[Key, TaskRequest]]) -> list[Outcome]:
        """Do tasks whose updates were lost; ends when all are done."""
        queued = [task for key, request in tasks for task in self._queue.add(key, [request])]
        for task in queued:
            task.awaited = True
        self._go_on()
        with held():
            done = await asyncio.gather(*(task.done for task in queued))
        return [outcome for _, outcome in done]

    def _go_on(self) -> None:
        """Push tasks until every worker has enough in hand; give up if there will be none."""
        links = self._actors.links
        if self._failure is None and not links and not self._actors.is_starting:
            self._fail(WorkerError("every worker on Ray was lost, and no other could be started"))
        if self._failure is not None:
            for task in self._queue.clear():
                task.give_up(self._failure)
            return
        while len(self._queue) and links:
            link = min(links, key=lambda one: one.in_hand)
            if link.in_hand >= IN_HAND:
                return
            batch = self._queue.batch(link.participants, len(links))
            live = [task for task in batch if task.key in self._actors.openings]
            for task in batch:
                if task not in live:
                    task.give_up(RoundOverError(f"round {task.key[1]}.{task.key[2]} of run {task.key[0]} is over"))
            if live:
                self._push(link, live)

    def _push(self, link: Link, batch: Sequence[QueuedTask]) -> None:
        link.in_hand += 1
        link.participants.update(task.request.participant for task in batch)
        pushing = asyncio.create_task(self._done(link, batch))
        self._pushing.add(pushing)
        pushing.add_done_callback(self._pushing.discard)

    async def _done(self, link: Link, batch: Sequence[QueuedTask]) -> None:
        try:
            outcomes: Sequence[Outcome] = await link.ask("work", [(task.key, task.request) for task in batch])
        except LostError as error:
            self._actors.lose(link, error)
            for task in reversed(batch):
                self._retry(task, error)
        except SimulationError as error:
            for task in batch:
                task.give_up(error)
        else:
            for task, outcome in zip(batch, outcomes, strict=True):
                self._queue.took(outcome.participant, outcome.seconds)
                if outcome.squares and not outcome.rejection:
                    self._records.note(task.at, task.request, link)
                task.finish(NODE, outcome)
        finally:
            link.in_hand -= 1
            self._go_on()

    def _retry(self, task: QueuedTask, why: LostError) -> None:
        if self._records.lost(task.at):
            self._queue.again(task)
        else:
            key, name = task.at
            task.give_up(WorkerError(f"the task of {name} in round {key[1] + 1} has ended every worker: {why}"))

    def _fail(self, error: Exception) -> None:
        """Fail every awaited task with this error, because the pool cannot continue."""
        self._failure = self._failure or error
        for task in self._queue.clear():
            task.give_up(error)
