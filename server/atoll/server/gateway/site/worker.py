"""Performs the server's orders at a gateway: folds, sums, deletions."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import ParamSpec, TypeVar

import grpc

from atoll.server.aggregation.errors import AggregationError
from atoll.server.errors import ServerError
from atoll.server.gateway.site.partial_upload import PartialUpload
from atoll.server.identity import RevokedError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import IngestNode
from atoll.server.ingest.node_pool import PARTIAL
from atoll.server.ingest.partial_file import PartialFile
from atoll.server.ingest.spool import Spool
from atoll.server.rpc.errors import status_of
from atoll.server.rpc.ingest_messages import fold_item_from_proto, items_of, key_of, role_of
from atoll.wire.status import ErrorDetail, Fault
from atoll.wire.v1 import gateway_pb2

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


class Worker:
    """Performs orders; one instance per gateway.

    Args:
        node: folds.
        spool: the uploads.
        folder: for partial sums on their way.
        executor: threads for disk and arithmetic.
        upload: sends a partial sum.
        shut_out: ends the calls of a revoked participant with an error.
    """

    def __init__(
        self,
        *,
        node: IngestNode,
        spool: Spool,
        folder: Path,
        executor: Executor,
        upload: PartialUpload,
        shut_out: Callable[[Caller, ServerError], None],
    ) -> None:
        self._node = node
        self._spool = spool
        self._folder = folder
        self._executor = executor
        self._upload = upload
        self._shut_out = shut_out
        self._done = 0

    async def perform(self, order: gateway_pb2.WorkResponse) -> gateway_pb2.OrderDone:
        """Perform an order; its error, if there is one, is in the answer."""
        done = await self._outcome(order)
        self._done += order.WhichOneof("order") is not None
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
                await self._call(self._node.fold, key_of(order.fold), items_of(order.fold.items))
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
                self._shut_out(Caller(role_of(said.role), said.name), RevokedError(said.message))
            case "flaw":
                item = fold_item_from_proto(order.flaw.item)
                flaw = await self._call(
                    self._spool.flaw, item.run, item.round, item.attempt, item.participant, item.digest
                )
                return gateway_pb2.OrderDone(flaw=flaw)
            case "norms":
                norms = await self._call(self._node.norms, items_of(order.norms.items))
                return gateway_pb2.OrderDone(norms=norms)
            case _:  # a question whether this gateway answers, or an order of a later version of the server
                pass
        return gateway_pb2.OrderDone()

    async def _sum(self, order: gateway_pb2.PartialOrder) -> None:
        """Send a sum from a file, so that later folds into it change nothing."""
        path = self._folder / f"{secrets.token_hex(8)}{PARTIAL}"
        try:
            await self._call(self._node.write_partial, key_of(order.sum), items_of(order.sum.items), path)
            partial = await self._call(PartialFile, path)
        finally:
            path.unlink(missing_ok=True)
        await self._upload.send(order.name, partial)

    async def _drop(self, order: gateway_pb2.DropOrder) -> None:
        at = order.through
        keep = {(item.origin.round, item.origin.attempt, item.participant) for item in order.keep}
        await self._call(self._node.drop, at.run, at.round, at.attempt)
        await self._call(self._spool.drop_through, at.run, (at.round, at.attempt), keep)

    async def _drop_run(self, run: str) -> None:
        await self._call(self._node.drop_run, run)
        await self._call(self._spool.drop_run, run)

    async def _keep(self, runs: frozenset[str]) -> None:
        for run in await self._call(self._spool.runs):
            if run not in runs:
                await self._drop_run(run)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))


def _failed(number: int, error: Exception) -> gateway_pb2.OrderDone:
    known = status_of(error) or (
        grpc.StatusCode.INTERNAL,
        ErrorDetail(
            "gateway.order", Fault.SERVER, f"unexpected {type(error).__name__} at the aggregator", "see its log"
        ),
    )
    code, detail = known
    return gateway_pb2.OrderDone(number=number, status=int(code.value[0]), error=detail.to_proto())
