"""The ingest nodes that the coordinator can ask to fold: the one in this process, or the workers'."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol, TypeVar

from atoll.server.aggregation import PartialSum, PartialSumError
from atoll.server.errors import NotFoundError, ServerError, UnavailableError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, IngestNode, SumKey
from atoll.server.ingest.partial_file import PartialFile

T = TypeVar("T")
log = logging.getLogger(__name__)

PARTIAL = ".partial"
"""Suffix of files with partial sums: ``NODE-RANDOM.partial``."""
SMALL_ELEMENTS = 1 << 13
"""Updates up to this many elements, which arrive within their reports, are folded together to save calls."""
GATEWAY = "gateway-"
"""Prefix of the names of aggregators' nodes, followed by the aggregator's id. No other node can read their uploads."""
STANDBY = "standby-"
"""Prefix of the names of standbys' nodes, which are gateways too. Any node can read their uploads, in the bucket."""
AWAY_S = 60.0
"""Seconds for which a sum waits for a disconnected gateway that has a part of it, or until its round's deadline."""
SLOW = "node.slow"
"""Error code for a gateway that is connected but makes no progress."""
SLOW_S = 60.0
"""Seconds for which such a gateway gets no other orders; after their deadline, sums do without it."""
TOGETHER = 64
"""Number of small updates that one call folds, unless the round is summed earlier."""


class Node(Protocol):
    """The coordinator's interface of a node."""

    name: str

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """Add the updates that are not yet in the node's sum."""
        ...

    def partial(self, key: SumKey, items: Sequence[FoldItem]) -> contextlib.AbstractAsyncContextManager[PartialSum]:
        """The node's sum of exactly these updates."""
        ...

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """Forget a run's sums up to this attempt of a round."""
        ...

    async def drop_run(self, run: str) -> None:
        """Forget every sum of a run."""
        ...

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """End the calls of a revoked caller that another process serves."""
        ...


class GatewayNode(Node, Protocol):
    """A node at a gateway, which keeps the uploads that it received.

    Its ``drop_run`` also deletes them; ``drop`` does nothing, since ``drop_uploads`` drops the sums.
    """

    async def drop_uploads(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Delete sums and uploads of a run's attempts up to ``through``, except the uploads of ``keep``."""
        ...

    async def norms(self, items: Sequence[FoldItem]) -> list[float]:
        """The L2 norms of updates that it received, in the same order."""
        ...

    async def flaw(self, item: FoldItem) -> str:
        """The flaw of a damaged acknowledged update; empty if it is intact."""
        ...


class LocalNode:
    """The node in the coordinator's own process."""

    def __init__(self, node: IngestNode, executor: Executor) -> None:
        self.name = node.name
        self._node = node
        self._executor = executor

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """See ``Node``."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._node.fold, key, items)

    @contextlib.asynccontextmanager
    async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
        """See ``Node``; the accumulator itself, not a copy."""
        loop = asyncio.get_running_loop()
        yield await loop.run_in_executor(self._executor, self._node.partial, key, items)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """See ``Node``."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._node.drop, run, round_number, attempt)

    async def drop_run(self, run: str) -> None:
        """See ``Node``."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._node.drop_run, run)

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """See ``Node``; calls that this process serves have already ended."""


class FileNode:
    """A node in another process, whose partial sums are files. ``calls`` makes the remote calls."""

    def __init__(self, name: str, calls: RemoteCalls, folder: Path, executor: Executor) -> None:
        self.name = name
        self._calls = calls
        self._folder = folder
        self._executor = executor

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """See ``Node``."""
        await self._calls.fold(key, items)

    @contextlib.asynccontextmanager
    async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
        """See ``Node``; a memory-mapped file that is removed afterwards."""
        path = self._folder / f"{self.name}-{secrets.token_hex(8)}{PARTIAL}"
        try:
            await self._calls.write_partial(key, items, path)
            yield await asyncio.get_running_loop().run_in_executor(self._executor, _opened, path)
        finally:
            path.unlink(missing_ok=True)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """See ``Node``."""
        await self._calls.drop(run, round_number, attempt)

    async def drop_run(self, run: str) -> None:
        """See ``Node``."""
        await self._calls.drop_run(run)

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """See ``Node``."""
        await self._calls.end_calls(caller, error)


class RemoteCalls(Protocol):
    """Calls to a worker process."""

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """Fold in the worker."""
        ...

    async def write_partial(self, key: SumKey, items: Sequence[FoldItem], path: Path) -> None:
        """Make the worker write a partial sum."""
        ...

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """Forget a run's sums up to this attempt of a round."""
        ...

    async def drop_run(self, run: str) -> None:
        """Forget a run."""
        ...

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """End the calls of a revoked caller."""
        ...


class NodePool:
    """The nodes by name. Work for a node that is gone goes to another, since any node can read any spool.

    Aggregators are the exception: a round's sum waits for them, and then leaves out their updates.

    Args:
        away_s: see ``AWAY_S``.
        clock: seconds, monotonic.
    """

    def __init__(self, away_s: float = AWAY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._away_s = away_s
        self._clock = clock
        self._gateways: dict[str, GatewayNode] = {}
        self._away: dict[str, float] = {}  # disconnected gateways, by the time since which they are missed
        self._slow: dict[str, float] = {}  # gateways that did not finish an order in time, with the time
        self._nodes: dict[str, Node] = {}
        self._small: dict[tuple[SumKey, str], list[FoldItem]] = {}  # waiting small updates

    def add(self, node: Node) -> None:
        """Add a node that is ready (again)."""
        self._nodes[node.name] = node

    def remove(self, name: str) -> None:
        """Remove a node that is gone; its sums are folded again elsewhere."""
        self._nodes.pop(name, None)

    def add_gateway(self, node: GatewayNode) -> None:
        """Add a gateway that has connected."""
        self._gateways[node.name] = node
        self._away.pop(node.name, None)
        self.add(node)

    def remove_gateway(self, node: GatewayNode) -> None:
        """Remove a gateway that has disconnected, unless it has already returned."""
        if self._gateways.get(node.name) is node:
            del self._gateways[node.name]
            if node.name.startswith(GATEWAY):
                self._away[node.name] = self._clock()
            self.remove(node.name)

    async def drop_uploads(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Make gateways delete sums and uploads; a disconnected one does so with a later round, or when it returns.

        Args:
            run: the run.
            through: round and attempt of the last attempt.
            keep: uploads to keep, by round, attempt and participant.
        """
        gateways = set(self._gateways)
        await self._everywhere(
            lambda node: self._gateways[node.name].drop_uploads(run, through, keep), "keeps old uploads", gateways
        )

    async def flaw(self, node: str, item: FoldItem, wait_until: float = 0.0) -> str | None:
        """The flaw of a damaged update at an aggregator; empty if it is intact, None if other nodes can read it.

        Raises:
            UnavailableError: if the gateway is disconnected, and may still return in time.
        """
        if not node.startswith(GATEWAY):
            return None
        found = self._gateways.get(node)
        if found is not None and not self._is_slow(node):
            return await self._watched(node, found.flaw(item))
        error = self._missing(node, wait_until)
        if isinstance(error, UnavailableError):
            raise error
        return str(error.detail)

    async def norms(self, items: Sequence[tuple[str, FoldItem]], wait_until: float = 0.0) -> dict[str, float]:
        """The L2 norms, by update id, of updates that only their aggregators can read. Arguments as for ``partials``.

        Raises:
            UnavailableError, NotFoundError: as for ``partials``.
        """
        shares: dict[str, list[FoldItem]] = defaultdict(list)
        for name, item in items:
            if name.startswith(GATEWAY):
                shares[name].append(item)
        found: dict[str, float] = {}
        for name, share in shares.items():
            gateway = self._gateways.get(name)
            if gateway is None or self._is_slow(name):
                raise self._missing(name, wait_until)
            norms = await self._watched(name, gateway.norms(share))
            found |= {item.update_id: norm for item, norm in zip(share, norms, strict=True)}
        return found

    def due(self, key: SumKey, node: str, item: FoldItem) -> Sequence[FoldItem]:
        """The updates to fold now that this one has arrived; empty if it waits for others, at most until the sum.

        Only small updates wait. If one is damaged, the sum detects it.
        """
        if key.elements > SMALL_ELEMENTS:
            return (item,)
        waiting = self._small.setdefault((key, node), [])
        waiting.append(item)
        if len(waiting) < TOGETHER:
            return ()
        return self._small.pop((key, node))

    async def fold(self, key: SumKey, node: str, items: Sequence[FoldItem]) -> Sequence[FoldItem]:
        """Fold the updates that are ``due`` at the node that received them, if that is still there.

        Returns:
            The updates that are now in the sum: these, or none if the sum must detect a damaged one.

        Raises:
            UnavailableError: if there is no node.
            ServerError: if a large update can no longer be read.
        """
        chosen = self._choose(node)
        if key.elements > SMALL_ELEMENTS:
            await self._watched(chosen.name, chosen.fold(key, items))
            return items
        return await self._fold_together(chosen, key, items)

    async def _fold_together(self, node: Node, key: SumKey, items: Sequence[FoldItem]) -> Sequence[FoldItem]:
        try:
            await self._watched(node.name, node.fold(key, items))
        except ServerError as error:  # the damaged one is unknown; members of a secret draw must not be named
            log.info("small updates of run %s are left to the sum: %s", key.run, error.detail.code)
            return []
        return items

    @contextlib.asynccontextmanager
    async def partials(
        self, key: SumKey, items: Sequence[tuple[str, FoldItem]], wait_until: float = 0.0
    ) -> AsyncIterator[list[PartialSum]]:
        """The partial sums over exactly these updates, which are given with the node that received each.

        Args:
            key: the sum.
            items: the updates.
            wait_until: second of the pool's clock until which, and at least for ``away_s``, disconnected gateways are
                waited for.

        Raises:
            UnavailableError: if there is no node, or a gateway is disconnected.
            NotFoundError: if a gateway has been disconnected for too long.
            ServerError: if an update can no longer be read.
        """
        self._forget(lambda waiting: waiting == key)
        shares: dict[str, list[FoldItem]] = defaultdict(list)
        for node, item in items:
            shares[self._choose(node, wait_until).name].append(item)
        async with contextlib.AsyncExitStack() as stack:
            nodes = [(self._nodes[name], share) for name, share in sorted(shares.items())]
            entering = [
                self._watched(node.name, stack.enter_async_context(node.partial(key, share))) for node, share in nodes
            ]
            # all must have ended, in any way, before the stack closes what they use
            entered = await asyncio.gather(*entering, return_exceptions=True)
            yield [_sum_of(outcome) for outcome in entered]

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """Forget a run's sums up to this attempt of a round, everywhere."""
        through = (round_number, attempt)
        self._forget(lambda waiting: waiting.run == run and (waiting.round, waiting.attempt) <= through)
        await self._everywhere(lambda node: node.drop(run, round_number, attempt), "keeps old sums for now")

    async def drop_run(self, run: str) -> None:
        """Forget every sum of a run everywhere."""
        self._forget(lambda waiting: waiting.run == run)
        await self._everywhere(lambda node: node.drop_run(run), "keeps old sums for now")

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """End the calls of a revoked caller in every process."""
        late = f"learns a moment later that {caller.name} is revoked"
        await self._everywhere(lambda node: node.end_calls(caller, error), late)

    async def _everywhere(
        self, call: Callable[[Node], Awaitable[None]], otherwise: str, among: Collection[str] | None = None
    ) -> None:
        """Call every node, or those in ``among``, concurrently; logs ``otherwise`` for one that does not answer."""
        nodes = [node for name, node in self._nodes.items() if among is None or name in among]
        for node, outcome in zip(nodes, await asyncio.gather(*map(call, nodes), return_exceptions=True), strict=True):
            if isinstance(outcome, ServerError):
                log.warning("ingest node %s %s: %s", node.name, otherwise, outcome.logged)
            elif outcome is not None:
                raise outcome

    def _forget(self, unwanted: Callable[[SumKey], bool]) -> None:
        """Forget small updates that wait for these sums."""
        self._small = {at: items for at, items in self._small.items() if not unwanted(at[0])}

    def _choose(self, name: str, wait_until: float = math.inf) -> Node:
        found = None if self._is_slow(name) else self._nodes.get(name)
        if found is None and name.startswith(GATEWAY):
            raise self._missing(name, wait_until)
        others = [other for other in self._nodes if other not in self._gateways]
        if found is None and not others:
            raise UnavailableError("node.none", "no ingest node is running", "try again", retry_after_s=1.0)
        return self._nodes[min(others)] if found is None else found

    async def _watched(self, name: str, work: Awaitable[T]) -> T:
        """Await a node's work, and note whether it is slow."""
        try:
            return await work
        except UnavailableError as error:
            if error.detail.code == SLOW:
                self._slow[name] = self._clock()
            raise

    def _is_slow(self, name: str) -> bool:
        since = self._slow.get(name)
        return since is not None and self._clock() < since + SLOW_S

    def _missing(self, name: str, wait_until: float) -> ServerError:
        """The error for work of a gateway that is disconnected or makes no progress."""
        now = self._clock()
        who = f"aggregator {name.removeprefix(GATEWAY)}"
        if self._is_slow(name):
            code, message, since = SLOW, f"{who} does not do its work", -math.inf
        else:
            code, message, since = "node.away", f"{who} is not connected", self._away.setdefault(name, now)
        if now < max(since + self._away_s, wait_until):
            return UnavailableError(code, message, "start it again", retry_after_s=1.0)
        return NotFoundError(
            "node.lost", f"{message}, and it has the update", "start it again; the participant takes part later"
        )


def _opened(path: Path) -> PartialSum:
    """Open a partial sum that a worker has written; a torn one, from a killed worker, is written again."""
    try:
        return PartialFile(path)
    except (PartialSumError, OSError) as error:
        raise UnavailableError(
            "node.partial",
            "a worker's partial sum cannot be read",
            "fold again",
            retry_after_s=1.0,
            where=f"{path}: {error}",
        ) from error


def _sum_of(outcome: PartialSum | BaseException) -> PartialSum:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
