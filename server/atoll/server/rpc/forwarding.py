"""Forwards calls, unparsed, to the active server, with the certificate that the caller has proved.

Every server of the federation has the authority's key, so another server may trust its statement of who the caller is;
see ``authentication.certificate_of``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import grpc
import grpc.aio

from atoll.server.errors import UnavailableError
from atoll.server.identity import Role
from atoll.server.rpc.authentication import FORWARDED, Authenticator, Context, certificate_of
from atoll.server.rpc.internal_calls import as_server_errors, closing_is_unavailability
from atoll.wire.project import PROJECT

_PEER = "active server"


class Forwarding(grpc.GenericRpcHandler):
    """A standby's handlers of the methods that only the active server can perform.

    Args:
        names: full names of services and of single methods.
        channel: to the active server; raises UnavailableError if that is unknown.
        authenticator: identifies callers.
        endless: full names of methods whose calls last until one side ends them.
    """

    def __init__(
        self,
        names: Collection[str],
        channel: Callable[[], grpc.aio.Channel],
        authenticator: Authenticator,
        endless: Collection[str] = (),
    ) -> None:
        self._names = frozenset(names)
        self._channel = channel
        self._authenticator = authenticator
        self._endless = frozenset(endless)
        self._open: set[Any] = set()
        self._leaving = False

    def leave(self) -> None:
        """Prepare to stop: end the endless calls, and refuse new ones."""
        self._leaving = True
        for call in self._open:
            call.cancel()

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
        """Yield the answers of the active server, or raise its error.

        Raises:
            UnavailableError: if it does not answer, this server is stopping or has turned to another one, or the caller
                is itself a server.
            ServerError: the error of the active server.
        """
        caller = await self._authenticator.identify(context)
        if caller.role is Role.SERVER:
            raise UnavailableError("standby.call", "this server is itself a standby", "find the active one", 1.0)
        endless = path.removeprefix("/") in self._endless
        if endless and self._leaving:
            raise _stopping()
        pass_on: Any = self._channel().stream_stream(path)
        project = dict(context.invocation_metadata() or ()).get(PROJECT)
        metadata = ((FORWARDED, certificate_of(context)), *(((PROJECT, project),) if project else ()))
        with closing_is_unavailability(_PEER):
            async with as_server_errors(_PEER):
                call = pass_on(requests, timeout=context.time_remaining(), metadata=metadata)
                if endless:
                    self._open.add(call)
                try:
                    async for answer in call:
                        yield answer
                except asyncio.CancelledError:
                    if endless and self._leaving:
                        raise _stopping() from None
                    raise
                finally:
                    self._open.discard(call)
                    call.cancel()


def _stopping() -> UnavailableError:
    return UnavailableError("server.stopping", "the server is stopping", "try again", retry_after_s=1.0)
