"""An ingest worker's internal API, which it serves on a Unix socket to the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio

from atoll.server.errors import ServerError
from atoll.server.identity import RevokedError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, IngestNode, SumKey
from atoll.server.rpc.authentication import Context
from atoll.server.rpc.ingest_messages import fold_to_proto, items_of, key_of, partial_to_proto, role_of
from atoll.server.rpc.internal_calls import as_server_errors
from atoll.server.threads import in_thread
from atoll.wire.v1 import ingest_pb2, participation_pb2
from atoll.wire.v1.ingest_pb2_grpc import WorkerServiceServicer, WorkerServiceStub

if TYPE_CHECKING:
    from atoll.wire.v1.ingest_pb2_grpc import WorkerServiceAsyncStub

METRICS_S = 3.0
"""Maximum seconds to wait for a worker's metrics, during which the metrics page is not answered."""
END_CALLS_S = 5.0
"""Maximum seconds to wait for a worker to end a revoked caller's calls; the worker itself checks callers again after
``IDENTITY_CACHE_S``."""
WORK_S = 600.0
"""Maximum seconds to wait for a worker to fold or write; gigabytes on a busy disk take a while."""


class WorkerService(WorkerServiceServicer):
    """Serves an ingest node and the process's metrics to the coordinator; ends the calls of revoked callers.

    Args:
        node: the ingest node.
        executor: the node's threads.
        exposition: returns the process's metrics, in Prometheus' text format.
        shut_out: ends the calls of a caller with an error.
    """

    def __init__(
        self,
        node: IngestNode,
        executor: Executor,
        exposition: Callable[[], bytes],
        shut_out: Callable[[Caller, ServerError], None],
    ) -> None:
        self._node = node
        self._executor = executor
        self._exposition = exposition
        self._shut_out = shut_out

    async def Fold(self, request: ingest_pb2.FoldRequest, context: Context) -> ingest_pb2.FoldResponse:
        """See ``IngestNode.fold``."""
        key = key_of(request)
        await in_thread(self._executor, self._node.fold, key, items_of(request.items))
        return ingest_pb2.FoldResponse()

    async def WritePartial(
        self, request: ingest_pb2.WritePartialRequest, context: Context
    ) -> ingest_pb2.WritePartialResponse:
        """See ``IngestNode.write_partial``."""
        key = key_of(request)
        weight = await in_thread(
            self._executor, self._node.write_partial, key, items_of(request.items), Path(request.path)
        )
        return ingest_pb2.WritePartialResponse(total_weight=weight)

    async def DropRound(self, request: ingest_pb2.DropRoundRequest, context: Context) -> ingest_pb2.DropRoundResponse:
        """See ``IngestNode.drop``."""
        at = request.round
        await in_thread(self._executor, self._node.drop, at.run, at.round, at.attempt)
        return ingest_pb2.DropRoundResponse()

    async def DropRun(self, request: ingest_pb2.DropRunRequest, context: Context) -> ingest_pb2.DropRunResponse:
        """See ``IngestNode.drop_run``."""
        await in_thread(self._executor, self._node.drop_run, request.run)
        return ingest_pb2.DropRunResponse()

    async def EndCalls(self, request: ingest_pb2.EndCallsRequest, context: Context) -> ingest_pb2.EndCallsResponse:
        """End the calls of a revoked caller."""
        self._shut_out(Caller(role_of(request.role), request.name), RevokedError(request.message))
        return ingest_pb2.EndCallsResponse()

    async def GetMetrics(
        self, request: ingest_pb2.GetMetricsRequest, context: Context
    ) -> ingest_pb2.GetMetricsResponse:
        """The metrics of this process."""
        return ingest_pb2.GetMetricsResponse(exposition=self._exposition())


class WorkerCalls:
    """The coordinator's stub of a worker: an ``ingest.file_node.RemoteCalls``."""

    def __init__(self, name: str, channel: grpc.aio.Channel) -> None:
        self._name = name
        self._stub: WorkerServiceAsyncStub = WorkerServiceStub(channel)

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """Fold in the worker."""
        async with as_server_errors(self._name):
            await self._stub.Fold(fold_to_proto(key, items), timeout=WORK_S)

    async def write_partial(self, key: SumKey, items: Sequence[FoldItem], path: Path) -> None:
        """Have the worker write a partial sum."""
        async with as_server_errors(self._name):
            await self._stub.WritePartial(partial_to_proto(key, items, str(path)), timeout=WORK_S)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """Drop a run's sums up to this attempt of a round."""
        key = participation_pb2.RoundKey(run=run, round=round_number, attempt=attempt)
        async with as_server_errors(self._name):
            await self._stub.DropRound(ingest_pb2.DropRoundRequest(round=key), timeout=WORK_S)

    async def drop_run(self, run: str) -> None:
        """Drop a run's sums."""
        async with as_server_errors(self._name):
            await self._stub.DropRun(ingest_pb2.DropRunRequest(run=run), timeout=WORK_S)

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """Have the worker forget a revoked caller and end its calls."""
        request = ingest_pb2.EndCallsRequest(role=caller.role.value, name=caller.name, message=error.detail.message)
        async with as_server_errors(self._name):
            await self._stub.EndCalls(request, timeout=END_CALLS_S)

    async def exposition(self) -> bytes:
        """The worker's metrics, in Prometheus' text format."""
        async with as_server_errors(self._name):
            answer = await self._stub.GetMetrics(ingest_pb2.GetMetricsRequest(), timeout=METRICS_S)
        return answer.exposition
