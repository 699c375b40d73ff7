"""Passes calls on to the server at work, unread, with the certificate that their caller has proved.

A server of the federation has the authority's key, so another one may believe it who its caller is: see
``authentication.certificate_of``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import grpc
import grpc.aio

from atoll.server.errors import UnavailableError
from atoll.server.identity import Role
from atoll.server.rpc.authentication import FORWARDED, Authenticator, Context, certificate_of
from atoll.server.rpc.internal_calls import as_server_errors
from atoll.wire.project import PROJECT


class Forwarding(grpc.GenericRpcHandler):
    """The handlers of a server that stands by for what only the server at work does.

    Args:
        names: full names of services, and of single methods.
        channel: to the server at work; raises UnavailableError if it is not known.
        authenticator: identifies callers.
    """

    def __init__(
        self, names: Collection[str], channel: Callable[[], grpc.aio.Channel], authenticator: Authenticator
    ) -> None:
        self._names = frozenset(names)
        self._channel = channel
        self._authenticator = authenticator

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See ``grpc.GenericRpcHandler``."""
        path = str(handler_call_details.method)
        method = path.removeprefix("/")
        if method not in self._names and method.rpartition("/")[0] not in self._names:
            return None

        async def forward(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async for answer in self._forward(path, requests, context):
                yield answer

        return grpc.stream_stream_rpc_method_handler(forward)

    async def _forward(self, path: str, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """The answers of the server at work, or its error.

        Raises:
            UnavailableError: if it does not answer, or the caller is a server, which does not belong here.
            ServerError: as the server at work says.
        """
        caller = await self._authenticator.identify(context)
        if caller.role is Role.SERVER:
            raise UnavailableError("standby.call", "this server stands by itself", "find the one at work", 1.0)
        pass_on: Any = self._channel().stream_stream(path)
        project = dict(context.invocation_metadata() or ()).get(PROJECT)
        metadata = ((FORWARDED, certificate_of(context)), *(((PROJECT, project),) if project else ()))
        async with as_server_errors("server at work"):
            call = pass_on(requests, timeout=context.time_remaining(), metadata=metadata)
            try:
                async for answer in call:
                    yield answer
            finally:
                call.cancel()
