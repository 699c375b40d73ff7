"""Performs the server's orders at a gateway: folds, sums, deletions."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

import grpc

from atoll.server.aggregation import MergedSum
from atoll.server.aggregation.errors import AggregationError
from atoll.server.disk.space import storage_error
from atoll.server.errors import ServerError
from atoll.server.gateway.site.partial_upload import PartialUpload
from atoll.server.identity import RevokedError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, IngestNode, SumKey
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.spool import Spool
from atoll.server.rpc.errors import status_of
from atoll.server.rpc.ingest_messages import fold_item_from_proto, items_of, key_of, role_of
from atoll.server.threads import in_thread
from atoll.wire.status import ErrorDetail, Fault
from atoll.wire.v1 import gateway_pb2

log = logging.getLogger(__name__)


class OwnCalls:
    """Calls this process's own node like a worker process's: a ``RemoteCalls``.

    The sum is thus a file, and later folds do not change it while it is sent.
    """

    def __init__(self, node: IngestNode, executor: Executor) -> None:
        self._node = node
        self._executor = executor

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """See ``IngestNode``."""
        await in_thread(self._executor, self._node.fold, key, items)

    async def write_partial(self, key: SumKey, items: Sequence[FoldItem], path: Path) -> None:
        """See ``IngestNode``."""
        await in_thread(self._executor, self._node.write_partial, key, items, path)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """See ``IngestNode``."""
        await in_thread(self._executor, self._node.drop, run, round_number, attempt)

    async def drop_run(self, run: str) -> None:
        """See ``IngestNode``."""
        await in_thread(self._executor, self._node.drop_run, run)

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """Do nothing: ``Worker`` ends the calls that this process serves."""


class Worker:
    """Performs orders; one instance per gateway.

    Args:
        node: this process's node.
        nodes: the nodes that fold, including this process's. Their sums are in files.
        node_of: returns the name of the node that received an update; empty if unknown.
        spool: the uploads.
        executor: threads for disk access and arithmetic.
        upload: sends a partial sum.
        shut_out: ends the calls of a revoked participant with an error.
        watched: whether other processes fold too and are killed if they hang; an order then counts as progress while it
            lasts.
    """

    def __init__(
        self,
        *,
        node: IngestNode,
        nodes: NodePool,
        node_of: Callable[[FoldItem], str],
        spool: Spool,
        executor: Executor,
        upload: PartialUpload,
        shut_out: Callable[[Caller, ServerError], None],
        watched: bool = False,
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._node_of = node_of
        self._spool = spool
        self._executor = executor
        self._upload = upload
        self._shut_out = shut_out
        self._watched = watched
        self._older: dict[str, tuple[int, int] | None] = {}
        self._pending = 0
        self._done = 0

    async def begin(self) -> None:
        """Note the uploads that are here, before the server is asked which runs have not ended: see ``_keep``.

        Raises:
            StorageError: if the disk refuses.
        """
        try:
            self._older = await in_thread(self._executor, self._spool.newest_attempts)
        except OSError as error:
            raise storage_error("storage.uploads", "the stored uploads cannot be listed", error) from error

    async def perform(self, order: gateway_pb2.WorkResponse) -> gateway_pb2.OrderDone:
        """Perform an order; an error is returned in the answer."""
        is_work = order.WhichOneof("order") is not None
        self._pending += is_work
        try:
            done = await self._outcome(order)
        finally:
            self._pending -= is_work
        self._done += is_work or (self._watched and self._pending > 0)
        done.steps = self._done + self._node.steps + self._upload.steps
        return done

    async def _outcome(self, order: gateway_pb2.WorkResponse) -> gateway_pb2.OrderDone:
        try:
            done = await self._perform(order)
        except (ServerError, AggregationError) as error:
            log.warning("order %s of the server failed: %s", order.WhichOneof("order"), error)
            return _failed(order.number, error)
        except Exception as error:
            log.exception("order %s of the server failed", order.WhichOneof("order"))
            return _failed(order.number, error)
        done.number = order.number
        return done

    async def _perform(self, order: gateway_pb2.WorkResponse) -> gateway_pb2.OrderDone:
        match order.WhichOneof("order"):
            case "fold":
                await self._fold(key_of(order.fold), items_of(order.fold.items))
            case "partial":
                await self._sum(order.partial)
            case "drop":
                await self._drop(order.drop)
            case "drop_run":
                await self._drop_run(order.drop_run.run)
            case "keep":
                await self._keep(frozenset(order.keep.runs))
            case "end_calls":
                said = order.end_calls
                caller, error = Caller(role_of(said.role), said.name), RevokedError(said.message)
                self._shut_out(caller, error)
                await self._nodes.end_calls(caller, error)
            case "flaw":
                item = fold_item_from_proto(order.flaw.item)
                flaw = await in_thread(
                    self._executor, self._spool.flaw, item.run, item.round, item.attempt, item.participant, item.digest
                )
                return gateway_pb2.OrderDone(flaw=flaw)
            case "norms":
                norms = await in_thread(self._executor, self._node.norms, items_of(order.norms.items))
                return gateway_pb2.OrderDone(norms=norms)
            case _:  # a probe, or an order of a later version of the server
                pass
        return gateway_pb2.OrderDone()

    async def _fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        shares: dict[str, list[FoldItem]] = defaultdict(list)
        for item in items:
            shares[self._node_of(item)].append(item)
        for name, share in shares.items():
            await self._nodes.fold(key, name, share)

    async def _sum(self, order: gateway_pb2.PartialOrder) -> None:
        items = [(self._node_of(item), item) for item in items_of(order.sum.items)]
        async with self._nodes.partials(key_of(order.sum), items) as parts:
            await self._upload.send(order.name, MergedSum(parts))

    async def _drop(self, order: gateway_pb2.DropOrder) -> None:
        at = order.through
        keep = {(item.origin.round, item.origin.attempt, item.participant) for item in order.keep}
        await self._nodes.drop(at.run, at.round, at.attempt)
        await in_thread(self._executor, self._spool.drop_through, at.run, (at.round, at.attempt), keep)

    async def _drop_run(self, run: str) -> None:
        await self._nodes.drop_run(run)
        await in_thread(self._executor, self._spool.drop_run, run)

    async def _keep(self, runs: frozenset[str]) -> None:
        """Delete the uploads of other runs that were here before the server listed ``runs``.

        A run is active before its first upload arrives. So a run with old uploads that is not listed has ended. Uploads
        that arrived later may belong to runs that were submitted or extended after the list was made.
        """
        for run, newest in self._older.items():
            if run in runs:
                continue
            if newest is not None:
                await self._nodes.drop(run, *newest)
                await in_thread(self._executor, self._spool.drop_through, run, newest, ())
            await in_thread(self._executor, self._spool.forget_run, run)


def _failed(number: int, error: Exception) -> gateway_pb2.OrderDone:
    known = status_of(error) or (
        grpc.StatusCode.INTERNAL,
        ErrorDetail(
            "gateway.order", Fault.SERVER, f"unexpected {type(error).__name__} at the aggregator", "see its log"
        ),
    )
    code, detail = known
    return gateway_pb2.OrderDone(number=number, status=int(code.value[0]), error=detail.to_proto())
