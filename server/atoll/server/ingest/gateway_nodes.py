"""Ingest nodes at gateways, which keep the uploads that they received, and may be disconnected or slow."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, TypeVar

from atoll.server.errors import NotFoundError, ServerError, UnavailableError
from atoll.server.ingest.node import FoldItem
from atoll.server.ingest.node_api import Node

T = TypeVar("T")

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


class GatewayNodes:
    """The gateways' nodes by name: which are connected, and since when others are away or make no progress.

    Args:
        away_s: see ``AWAY_S``.
        clock: seconds, monotonic.
    """

    def __init__(self, away_s: float = AWAY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._away_s = away_s
        self._clock = clock
        self._connected: dict[str, GatewayNode] = {}
        self._away: dict[str, float] = {}  # disconnected gateway → since when
        self._slow: dict[str, float] = {}  # gateway that did not finish an order in time → when

    def __contains__(self, name: str) -> bool:
        """Whether a node is that of a connected gateway."""
        return name in self._connected

    def connected(self) -> list[GatewayNode]:
        """The nodes of the gateways that are connected."""
        return list(self._connected.values())

    def add(self, node: GatewayNode) -> None:
        """Add a gateway that has connected."""
        self._connected[node.name] = node
        self._away.pop(node.name, None)

    def remove(self, node: GatewayNode) -> bool:
        """Remove a gateway that has disconnected; returns False if it has already returned."""
        if self._connected.get(node.name) is not node:
            return False
        del self._connected[node.name]
        if node.name.startswith(GATEWAY):
            self._away[node.name] = self._clock()
        return True

    async def flaw(self, node: str, item: FoldItem, wait_until: float = 0.0) -> str | None:
        """The flaw of a damaged update at an aggregator; empty if it is intact, None if other nodes can read it.

        Raises:
            UnavailableError: if the gateway is disconnected, and may still return in time.
        """
        if not node.startswith(GATEWAY):
            return None
        found = self._connected.get(node)
        if found is not None and not self.is_slow(node):
            return await self.watched(node, found.flaw(item))
        error = self.missing(node, wait_until)
        if isinstance(error, UnavailableError):
            raise error
        return str(error.detail)

    async def norms(self, items: Sequence[tuple[str, FoldItem]], wait_until: float = 0.0) -> dict[str, float]:
        """The L2 norms, by update id, of updates that only their aggregators can read.

        Arguments and exceptions are those of ``NodePool.partials``.
        """
        shares: dict[str, list[FoldItem]] = defaultdict(list)
        for name, item in items:
            if name.startswith(GATEWAY):
                shares[name].append(item)
        found: dict[str, float] = {}
        for name, share in shares.items():
            gateway = self._connected.get(name)
            if gateway is None or self.is_slow(name):
                raise self.missing(name, wait_until)
            norms = await self.watched(name, gateway.norms(share))
            found |= {item.update_id: norm for item, norm in zip(share, norms, strict=True)}
        return found

    async def watched(self, name: str, work: Awaitable[T]) -> T:
        """Await a node's work, and note it as slow if it fails with ``SLOW``."""
        try:
            return await work
        except UnavailableError as error:
            if error.detail.code == SLOW:
                self._slow[name] = self._clock()
            raise

    def is_slow(self, name: str) -> bool:
        """Whether the gateway recently did not finish an order in time."""
        since = self._slow.get(name)
        return since is not None and self._clock() < since + SLOW_S

    def missing(self, name: str, wait_until: float) -> ServerError:
        """The error for work of a gateway that is disconnected or makes no progress."""
        now = self._clock()
        who = f"aggregator {name.removeprefix(GATEWAY)}"
        if self.is_slow(name):
            code, message, since = SLOW, f"{who} does not do its work", -math.inf
        else:
            code, message, since = "node.away", f"{who} is not connected", self._away.setdefault(name, now)
        if now < max(since + self._away_s, wait_until):
            return UnavailableError(code, message, "start it again", retry_after_s=1.0)
        return NotFoundError(
            "node.lost", f"{message}, and it has the update", "start it again; the participant takes part later"
        )
