"""The single node that the coordinator sees: the workers' sums, added in a tree."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

import ray

from atoll.server.aggregation import PartialSum
from atoll.server.errors import NotFoundError, ServerError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.simulation.cluster.array_sum import ArraySum
from atoll.simulation.cluster.link import Link, LostError, Ref, answer
from atoll.simulation.cluster.ray_actors import RayActors
from atoll.simulation.cluster.records import Records, at_of
from atoll.simulation.cluster.tree import children
from atoll.simulation.errors import SimulationError, WorkerError
from atoll.simulation.tasks import Outcome, TaskRequest
from atoll.simulation.virtual_time import held
from atoll.simulation.worker_pool import Key
from atoll.wire.v1 import transfer_pb2

Again = Callable[[Iterable[tuple[Key, TaskRequest]]], Awaitable[Sequence[Outcome]]]
"""Repeats tasks whose updates were lost."""


class ClusterNode:
    """The sums of all workers; see ``Node``."""

    def __init__(self, name: str, actors: RayActors, records: Records, again: Again) -> None:
        self.name = name
        self._actors = actors
        self._records = records
        self._again = again

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """See ``Node``: an update is already in a worker's sum, or waits for ``partial``."""

    @contextlib.asynccontextmanager
    async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
        """See ``Node``; updates of lost workers are recomputed first."""
        try:
            total = await self._total(key, items)
        except SimulationError as error:
            raise NotFoundError("spool.missing", str(error)) from error
        yield total

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """See ``Node``."""
        self._actors.drop(run, (round_number, attempt))

    async def drop_run(self, run: str) -> None:
        """See ``Node``."""
        self._actors.drop(run, (1 << 62, 0))

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """See ``Node``: there are none."""

    async def _total(self, key: SumKey, items: Sequence[FoldItem]) -> ArraySum:
        """The sum of these updates. Each further attempt recomputes the updates of a lost worker (``TRIES``)."""
        while True:
            await self._restore(items)
            shares = self._records.shares(items)
            try:
                with held():
                    return await answer(self._summed(key, shares))  # type: ignore[no-any-return]
            except LostError as error:
                await self._find_lost(shares, error)

    def _summed(self, key: SumKey, shares: Mapping[Link, Sequence[FoldItem]]) -> Ref:
        """Make each worker add the sums below it in the tree to its own, up to the root."""
        here = ray.get_runtime_context().get_node_id()
        root, below = children(list(shares), lambda link: link.node, here)

        def sum_of(link: Link) -> Ref:
            return link.call("partial", key, shares[link], *map(sum_of, below[link]))

        return sum_of(root)

    async def _restore(self, items: Sequence[FoldItem]) -> None:
        """Recompute updates that no worker holds any more.

        Raises:
            WorkerError: if workers are lost repeatedly, or a recomputed update differs.
        """
        missing = list(self._records.missing(items, self._actors.links))
        tasks = []
        for item in missing:
            at = at_of(item)
            request = self._records.request(at)
            if request is None or not self._records.lost(at):
                raise WorkerError(f"the update of {item.participant} was lost with its worker too often")
            tasks.append((at[0], request))
        if not tasks:
            return
        for item, outcome in zip(missing, await self._again(tasks), strict=True):
            found = transfer_pb2.ReportRequest.FromString(outcome.report).digest
            if found != item.digest:
                raise WorkerError(
                    f"participant {item.participant} repeated its task of round {item.round + 1}, because the "
                    f"worker with its update was lost, and its update differs ({found[:16] or outcome.failure}, before "
                    f"{item.digest[:16]}); make it depend only on model, data and task.seed, or start the run again"
                )

    async def _find_lost(self, shares: Mapping[Link, Sequence[FoldItem]], why: LostError) -> None:
        """Check every worker of a failed sum.

        Raises:
            WorkerError: if all workers are alive.
        """
        asked = [link.ask("ping") for link in shares]
        with held():
            answers = await asyncio.gather(*asked, return_exceptions=True)
        lost = [(link, error) for link, error in zip(shares, answers, strict=True) if isinstance(error, LostError)]
        for link, error in lost:
            self._actors.lose(link, error)
        if not lost and all(link in self._actors.links for link in shares):
            raise WorkerError(f"the workers' sums could not be added: {why}") from why
