"""The coordinator's interface of an ingest node, which folds updates: in this process, a worker or a gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from atoll.server.aggregation import PartialSum
from atoll.server.errors import ServerError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, SumKey


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
