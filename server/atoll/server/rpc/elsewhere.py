"""Refuses the services that only another server has now."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NoReturn

import grpc

from atoll.server.errors import UnavailableError

RETRY_S = 1.0


class Elsewhere(grpc.GenericRpcHandler):
    """The handlers of a server that stands by for what it does not do itself.

    Args:
        names: full names of services, and of single methods.
        where: the address of the server at work.
    """

    def __init__(self, names: Collection[str], where: Callable[[], str]) -> None:
        self._names = frozenset(names)
        self._where = where

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See ``grpc.GenericRpcHandler``."""
        method = str(handler_call_details.method).removeprefix("/")
        refused = method in self._names or method.rpartition("/")[0] in self._names
        return grpc.stream_stream_rpc_method_handler(self._refuse) if refused else None

    async def _refuse(self, requests: object, context: object) -> NoReturn:
        """Refuse the call.

        Raises:
            UnavailableError: always; it names the server at work.
        """
        del requests, context
        raise UnavailableError(
            "server.standby",
            f"this server stands by and serves participants only; {self._where()} is at work",
            f"call {self._where()}, or try again: a balancer may lead to it",
            retry_after_s=RETRY_S,
        )
