"""A gateway as an ingest node of the server: a ``gateway_nodes.GatewayNode``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Collection, Sequence
from concurrent.futures import Executor

from blake3 import blake3

from atoll.server.aggregation import PartialSum
from atoll.server.errors import ServerError, UnavailableError
from atoll.server.gateway.host.gateways import Gateway
from atoll.server.gateway.host.orders import Orders
from atoll.server.gateway.host.receipts import Receipts
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.rpc.ingest_messages import fold_item_to_proto, fold_to_proto
from atoll.server.threads import in_thread
from atoll.wire.v1 import gateway_pb2, ingest_pb2, participation_pb2

END_CALLS_S = 5.0
"""Maximum seconds to wait for a gateway to end a revoked caller's calls."""


class HostedNode:
    """One connected gateway.

    Args:
        gateway: the gateway.
        orders: sends orders to it.
        receipts: receives its sums.
        executor: threads that open the sums.
    """

    def __init__(self, gateway: Gateway, orders: Orders, receipts: Receipts, executor: Executor) -> None:
        self.name = gateway.node
        self._orders = orders
        self._receipts = receipts
        self._executor = executor

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """See ``Node``."""
        await self._orders.do(gateway_pb2.WorkResponse(fold=fold_to_proto(key, items)))

    @contextlib.asynccontextmanager
    async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
        """See ``Node``. An interrupted sum is resumed by the next call for the same updates."""
        wanted = fold_to_proto(key, items)
        name = blake3(wanted.SerializeToString(deterministic=True)).hexdigest()
        receipt = self._receipts.expect(self.name, name, key, items)
        order = gateway_pb2.PartialOrder(name=name, sum=wanted)
        await self._orders.do(gateway_pb2.WorkResponse(partial=order))
        if not receipt.complete:
            raise UnavailableError("node.partial", f"{self.name} sent no sum", "fold again", retry_after_s=1.0)
        try:
            yield await in_thread(self._executor, receipt.sum)
        finally:
            self._receipts.forget(self.name, name)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """See ``GatewayNode``."""

    async def drop_uploads(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """See ``GatewayNode``."""
        self._receipts.forget_run(self.name, run, through)
        kept = [
            fold_item_to_proto(FoldItem(run, at_round, attempt, who, "", 0)) for at_round, attempt, who in sorted(keep)
        ]
        key = participation_pb2.RoundKey(run=run, round=through[0], attempt=through[1])
        await self._orders.do(gateway_pb2.WorkResponse(drop=gateway_pb2.DropOrder(through=key, keep=kept)))

    async def drop_run(self, run: str) -> None:
        """See ``GatewayNode``."""
        self._receipts.forget_run(self.name, run)
        await self._orders.do(gateway_pb2.WorkResponse(drop_run=ingest_pb2.DropRunRequest(run=run)))

    async def keep_only(self, runs: Collection[str]) -> None:
        """Make the gateway delete the uploads of all other runs, which ended while it was disconnected."""
        await self._orders.do(gateway_pb2.WorkResponse(keep=gateway_pb2.KeepOrder(runs=sorted(runs))))

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """See ``Node``."""
        order = ingest_pb2.EndCallsRequest(role=caller.role.value, name=caller.name, message=error.detail.message)
        await self._orders.do(gateway_pb2.WorkResponse(end_calls=order), END_CALLS_S)

    async def norms(self, items: Sequence[FoldItem]) -> list[float]:
        """See ``GatewayNode``."""
        wanted = gateway_pb2.NormsOrder(items=[fold_item_to_proto(item) for item in items])
        norms = list((await self._orders.do(gateway_pb2.WorkResponse(norms=wanted))).norms)
        if len(norms) != len(items) or not all(0.0 <= norm < math.inf for norm in norms):
            raise UnavailableError(
                "node.norms", f"{self.name} gave {len(norms)} norms of {len(items)} updates", "update it", 1.0
            )
        return norms

    async def flaw(self, item: FoldItem) -> str:
        """See ``GatewayNode``."""
        order = gateway_pb2.FlawOrder(item=fold_item_to_proto(item))
        return (await self._orders.do(gateway_pb2.WorkResponse(flaw=order))).flaw
