"""The ingest node in the coordinator's own process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor

from atoll.server.aggregation import PartialSum
from atoll.server.errors import ServerError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, IngestNode, SumKey
from atoll.server.threads import in_thread


class LocalNode:
    """A ``node_api.Node`` whose work a thread of the executor does."""

    def __init__(self, node: IngestNode, executor: Executor) -> None:
        self.name = node.name
        self._node = node
        self._executor = executor

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """See ``node_api.Node``."""
        await in_thread(self._executor, self._node.fold, key, items)

    @contextlib.asynccontextmanager
    async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
        """See ``node_api.Node``; the accumulator itself, not a copy."""
        yield await in_thread(self._executor, self._node.partial, key, items)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """See ``node_api.Node``."""
        await in_thread(self._executor, self._node.drop, run, round_number, attempt)

    async def drop_run(self, run: str) -> None:
        """See ``node_api.Node``."""
        await in_thread(self._executor, self._node.drop_run, run)

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """See ``node_api.Node``; calls that this process serves have already ended."""
