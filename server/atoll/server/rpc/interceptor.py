"""Wraps every handler of a port (``method``), and refuses calls with too much metadata.

If a handler is registered for a single request, gRPC receives the request before it calls the handler, from any sender
and at any pace. So every handler is registered for a stream of requests, which is the same on the wire. The handler
then runs when the headers have arrived, and receives the request itself: after it has identified the caller, in one of
the caller's slots (``intake``), and within a time limit.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from atoll.server.errors import LimitExceededError
from atoll.server.ingest.transfer_meter import ignore
from atoll.server.rpc.errors import refuse
from atoll.server.rpc.method import Method, Refusals
from atoll.server.rpc.port_bounds import Bounds, Context

log = logging.getLogger(__name__)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a port.

    Args:
        bounds: the limits of the port; None: no limits.
        refused: called with the code of every error that is sent to a caller.
    """

    def __init__(self, bounds: Bounds | None = None, refused: Callable[[str], None] = ignore) -> None:
        self._bounds = bounds
        self._refusals = Refusals(log, refused)
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See ``grpc.aio.ServerInterceptor``."""
        name = str(handler_call_details.method)
        wrapped = self._wrapped.get(name)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._wrapped[name] = Method(name, handler, self._bounds, self._refusals).handler()
        entries = len(handler_call_details.invocation_metadata or ())
        if self._bounds is not None and entries > self._bounds.limits.metadata_entries:
            return self._without_metadata(name, self._bounds.limits.metadata_entries)
        return wrapped

    def _without_metadata(self, name: str, most: int) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse_all(_: object, context: Context) -> NoReturn:
            error = LimitExceededError(
                "request.metadata", f"the call has over {most} entries of metadata", "send fewer"
            )
            await refuse(context, error, name, self._refusals.count)

        return grpc.stream_stream_rpc_method_handler(refuse_all)
