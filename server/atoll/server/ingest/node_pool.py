"""The ingest nodes that the coordinator can ask to fold: the one in this process, or the workers'."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from atoll.server.aggregation import PartialSum, PartialSumError
from atoll.server.errors import ServerError, UnavailableError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, IngestNode, SumKey
from atoll.server.ingest.partial_file import PartialFile

log = logging.getLogger(__name__)

PARTIAL = ".partial"
"""Partial sums in files: ``NODE-RANDOM.partial``."""
SMALL_ELEMENTS = 1 << 13
"""Updates of so many elements, which come within their reports, are folded together: a call for each costs more."""
TOGETHER = 64
"""Number of small updates that one call folds, unless the round is summed before so many have come."""


class Node(Protocol):
    """One node, as the coordinator sees it."""

    name: str

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """Add those updates that are not in the node's sum yet."""
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
        """See ``Node``: those that this process serves have ended already."""


class FileNode:
    """A node in another process: its partial sums come as files. ``calls`` does the remote calls."""

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
    """What a worker process answers to."""

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """Fold in the worker."""
        ...

    async def write_partial(self, key: SumKey, items: Sequence[FoldItem], path: Path) -> None:
        """Have the worker write a partial sum."""
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
    """The nodes by name; work for one that is gone goes to another, for any node can read any spool."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._small: dict[tuple[SumKey, str], list[FoldItem]] = {}  # that wait for others

    def add(self, node: Node) -> None:
        """A node is ready (again)."""
        self._nodes[node.name] = node

    def remove(self, name: str) -> None:
        """A node is gone; its sums are folded anew elsewhere."""
        self._nodes.pop(name, None)

    def due(self, key: SumKey, node: str, item: FoldItem) -> Sequence[FoldItem]:
        """The updates to fold now that this one has come; none if it waits for others, at the latest for the sum.

        Only small updates wait. If one of them is damaged, the sum finds it.
        """
        if key.elements > SMALL_ELEMENTS:
            return (item,)
        waiting = self._small.setdefault((key, node), [])
        waiting.append(item)
        if len(waiting) < TOGETHER:
            return ()
        return self._small.pop((key, node))

    async def fold(self, key: SumKey, node: str, items: Sequence[FoldItem]) -> Sequence[FoldItem]:
        """Fold the updates that are ``due`` where they were received, if that node is still there.

        Returns:
            The updates that are in the sum now: these, or none if the sum has to find the damaged one.

        Raises:
            UnavailableError: if no node is there.
            ServerError: if a large update can no longer be read.
        """
        chosen = self._choose(node)
        if key.elements > SMALL_ELEMENTS:
            await chosen.fold(key, items)
            return items
        return await self._fold_together(chosen, key, items)

    @staticmethod
    async def _fold_together(node: Node, key: SumKey, items: Sequence[FoldItem]) -> Sequence[FoldItem]:
        try:
            await node.fold(key, items)
        except ServerError as error:  # which one is to blame is not known here; a secret draw's members are not named
            log.info("small updates of run %s are left to the sum: %s", key.run, error.detail.code)
            return []
        return items

    @contextlib.asynccontextmanager
    async def partials(self, key: SumKey, items: Sequence[tuple[str, FoldItem]]) -> AsyncIterator[list[PartialSum]]:
        """The partial sums that make up exactly these updates, given with the node that received each.

        Raises:
            UnavailableError: if no node is there.
            ServerError: if an update can no longer be read.
        """
        self._forget(lambda waiting: waiting == key)
        shares: dict[str, list[FoldItem]] = defaultdict(list)
        for node, item in items:
            shares[self._choose(node).name].append(item)
        async with contextlib.AsyncExitStack() as stack:
            nodes = [(self._nodes[name], share) for name, share in sorted(shares.items())]
            entering = [stack.enter_async_context(node.partial(key, share)) for node, share in nodes]
            # All have ended, one way or the other, before the stack unwinds what they hold.
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

    async def _everywhere(self, call: Callable[[Node], Awaitable[None]], otherwise: str) -> None:
        """Call every node at once. One that does not answer is logged: it ``otherwise`` ..."""
        nodes = list(self._nodes.values())
        for node, outcome in zip(nodes, await asyncio.gather(*map(call, nodes), return_exceptions=True), strict=True):
            if isinstance(outcome, ServerError):
                log.warning("ingest node %s %s: %s", node.name, otherwise, outcome.logged)
            elif outcome is not None:
                raise outcome

    def _forget(self, unwanted: Callable[[SumKey], bool]) -> None:
        """Forget the small updates that wait for these sums."""
        self._small = {at: items for at, items in self._small.items() if not unwanted(at[0])}

    def _choose(self, name: str) -> Node:
        if not self._nodes:
            raise UnavailableError("node.none", "no ingest node is running", "try again", retry_after_s=1.0)
        return self._nodes.get(name) or self._nodes[min(self._nodes)]


def _opened(path: Path) -> PartialSum:
    """A partial sum that a worker has written; a torn one (it was killed) is written again."""
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
