"""Records the actions of operators in the audit log, whatever becomes of them.

The entry is durable before the operator hears of success: an action that could not be recorded is answered with the
storage's error, although it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from atoll.server.access.audit_log import AuditLog
from atoll.server.errors import CallerError, ServerError
from atoll.server.identity import Role
from atoll.server.rpc.authentication import Authenticator, Context
from atoll.server.rpc.operations import Operation, operation_of
from atoll.server.rpc.peers import address_of
from atoll.server.stores import AuditEntry

Behaviour = Callable[..., Awaitable[Any]]


class Supervision(grpc.aio.ServerInterceptor):
    """Wraps the handlers of the operators' service.

    Args:
        authenticator: says who calls.
        audit_log: takes the entries.
    """

    def __init__(self, authenticator: Authenticator, audit_log: AuditLog) -> None:
        self._authenticator = authenticator
        self._audit_log = audit_log

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See ``grpc.aio.ServerInterceptor``."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        operation = operation_of(str(handler_call_details.method))
        if operation is None or not operation.action:
            return handler  # type: ignore[no-any-return]
        wrap = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        behaviour = self._recorded(operation, handler.stream_unary or handler.unary_unary)
        return wrap(
            behaviour,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _recorded(self, operation: Operation, behaviour: Behaviour) -> Behaviour:
        async def act(request: Any, context: Context) -> Any:
            caller = await self._authenticator.identify(context)
            if caller.role is not Role.OPERATOR:
                return await behaviour(request, context)  # which refuses it
            began = self._entry(operation, caller.name, context)
            try:
                answer = await behaviour(request, context)
            except asyncio.CancelledError:  # what the handler had begun may still be stored
                self._later(_ended(began, operation, request, outcome="interrupted"))
                raise
            except Exception as error:
                await self._now(_ended(began, operation, request, outcome=_outcome(error), code=_code(error)))
                raise
            await self._now(_ended(began, operation, request, answer))
            return answer

        return act

    def _entry(self, operation: Operation, operator: str, context: Context) -> AuditEntry:
        address = address_of(context.peer())
        return AuditEntry(
            0.0, operator, self._authenticator.credential(context), address[0] if address else "", operation.action
        )

    async def _now(self, entry: AuditEntry | None) -> None:
        if entry is not None:
            await self._audit_log.record(entry)

    def _later(self, entry: AuditEntry | None) -> None:
        if entry is not None:
            self._audit_log.record_later(entry)


def _ended(
    began: AuditEntry, operation: Operation, request: Any, answer: Any = None, *, outcome: str = "done", code: str = ""
) -> AuditEntry | None:
    about = operation.describe(request, answer)
    if about is None:
        return None
    return replace(began, subject=about.subject, detail=about.detail, outcome=outcome, code=code)


def _outcome(error: Exception) -> str:
    return "refused" if isinstance(error, CallerError) else "failed"


def _code(error: Exception) -> str:
    return error.detail.code if isinstance(error, ServerError) else type(error).__name__
