"""The ingest nodes that the coordinator can ask to fold: those of its machine, and the gateways'."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from atoll.server.aggregation import PartialSum
from atoll.server.errors import ServerError, UnavailableError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.gateway_nodes import AWAY_S, GATEWAY, GatewayNode, GatewayNodes
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.node_api import Node

N = TypeVar("N", bound=Node)
log = logging.getLogger(__name__)

SMALL_ELEMENTS = 1 << 13
"""Updates up to this many elements, which arrive within their reports, are folded together to save calls."""
TOGETHER = 64
"""Number of small updates that one call folds, unless the round is summed earlier."""


class NodePool:
    """The nodes by name. Work for a node that is gone goes to another, since any node can read any spool.

    Aggregators are the exception: a round's sum waits for them, and then leaves out their updates.

    Args:
        away_s: see ``AWAY_S``.
        clock: seconds, monotonic.

    Attributes:
        gateways: the nodes at gateways, which are also nodes of the pool.
    """

    def __init__(self, away_s: float = AWAY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.gateways = GatewayNodes(away_s, clock)
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
        self.gateways.add(node)
        self.add(node)

    def remove_gateway(self, node: GatewayNode) -> None:
        """Remove a gateway that has disconnected, unless it has already returned."""
        if self.gateways.remove(node):
            self.remove(node.name)

    async def drop_uploads(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Make gateways delete sums and uploads; a disconnected one does so with a later round, or when it returns.

        Args:
            run: the run.
            through: round and attempt of the last attempt.
            keep: uploads to keep, by round, attempt and participant.
        """
        gateways = self.gateways.connected()
        await _call_each(gateways, lambda node: node.drop_uploads(run, through, keep), "keeps old uploads")

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
            await self.gateways.watched(chosen.name, chosen.fold(key, items))
            return items
        return await self._fold_together(chosen, key, items)

    async def _fold_together(self, node: Node, key: SumKey, items: Sequence[FoldItem]) -> Sequence[FoldItem]:
        try:
            await self.gateways.watched(node.name, node.fold(key, items))
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
                self.gateways.watched(node.name, stack.enter_async_context(node.partial(key, share)))
                for node, share in nodes
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

    async def _everywhere(self, call: Callable[[Node], Awaitable[None]], otherwise: str) -> None:
        await _call_each(list(self._nodes.values()), call, otherwise)

    def _forget(self, unwanted: Callable[[SumKey], bool]) -> None:
        """Forget small updates that wait for these sums."""
        self._small = {at: items for at, items in self._small.items() if not unwanted(at[0])}

    def _choose(self, name: str, wait_until: float = math.inf) -> Node:
        found = None if self.gateways.is_slow(name) else self._nodes.get(name)
        if found is None and name.startswith(GATEWAY):
            raise self.gateways.missing(name, wait_until)
        others = [other for other in self._nodes if other not in self.gateways]
        if found is None and not others:
            raise UnavailableError("node.none", "no ingest node is running", "try again", retry_after_s=1.0)
        return self._nodes[min(others)] if found is None else found


async def _call_each(nodes: Sequence[N], call: Callable[[N], Awaitable[None]], otherwise: str) -> None:
    """Call these nodes concurrently; logs ``otherwise`` for one that does not answer."""
    for node, outcome in zip(nodes, await asyncio.gather(*map(call, nodes), return_exceptions=True), strict=True):
        if isinstance(outcome, ServerError):
            log.warning("ingest node %s %s: %s", node.name, otherwise, outcome.logged)
        elif outcome is not None:
            raise outcome


def _sum_of(outcome: PartialSum | BaseException) -> PartialSum:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
