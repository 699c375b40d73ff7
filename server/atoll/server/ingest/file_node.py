"""An ingest node in another process of this machine, which hands over its partial sums as files."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from atoll.server.aggregation import PartialSum, PartialSumError
from atoll.server.errors import ServerError, UnavailableError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.partial_file import PartialFile
from atoll.server.threads import in_thread

PARTIAL = ".partial"
"""Suffix of files with partial sums: ``NODE-RANDOM.partial``."""


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


class FileNode:
    """A ``node_api.Node`` in another process, whose partial sums are files. ``calls`` makes the remote calls."""

    def __init__(self, name: str, calls: RemoteCalls, folder: Path, executor: Executor) -> None:
        self.name = name
        self._calls = calls
        self._folder = folder
        self._executor = executor

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """See ``node_api.Node``."""
        await self._calls.fold(key, items)

    @contextlib.asynccontextmanager
    async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
        """See ``node_api.Node``; a memory-mapped file that is removed afterwards."""
        path = self._folder / f"{self.name}-{secrets.token_hex(8)}{PARTIAL}"
        try:
            await self._calls.write_partial(key, items, path)
            yield await in_thread(self._executor, _opened, path)
        finally:
            path.unlink(missing_ok=True)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """See ``node_api.Node``."""
        await self._calls.drop(run, round_number, attempt)

    async def drop_run(self, run: str) -> None:
        """See ``node_api.Node``."""
        await self._calls.drop_run(run)

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """See ``node_api.Node``."""
        await self._calls.end_calls(caller, error)


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
