"""Refuses calls that the operator's role does not allow, and records all actions, including failed ones.

The entry is durable before the operator is told of success. An action that could not be recorded is answered with the
storage error, although it was done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from atoll.server.access.audit_log import AuditLog
from atoll.server.access.role_checks import role_error
from atoll.server.errors import CallerError, ServerError
from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.rpc.authentication import Authenticator, Context
from atoll.server.rpc.operations import Concern, Operation, operation_of
from atoll.server.rpc.peers import address_of
from atoll.server.rpc.scoping import Scopes, enter
from atoll.server.stores import AuditEntry

READING = "read"
"""The action in the entry of a refused call that only reads; the subject is the method."""
Behaviour = Callable[..., Awaitable[Any]]
Stream = Callable[..., AsyncGenerator[Any, None]]


class Supervision(grpc.aio.ServerInterceptor):
    """Wraps the handlers of the operators' service.

    Args:
        authenticator: identifies callers.
        audit_log: stores the entries.
        administrators: returns the names of the operators who can grant a role in a project, or (None) in all projects.
        scopes: finds the scope of a call.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        audit_log: AuditLog,
        administrators: Callable[[str | None], Awaitable[Sequence[str]]],
        scopes: Scopes,
    ) -> None:
        self._authenticator = authenticator
        self._audit_log = audit_log
        self._administrators = administrators
        self._scopes = scopes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See ``grpc.aio.ServerInterceptor``."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        operation = None if handler is None else operation_of(method)
        return handler if operation is None else self._wrapped(operation, method, handler)

    def _wrapped(self, operation: Operation, method: str, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        if not operation.action:
            operation = replace(operation, describe=lambda _request, _answer: None)
        kinds = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_stream is not None:
            streamed = self._streamed(operation, method, handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(streamed, **kinds)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(
                self._answered(operation, method, handler.stream_unary), **kinds
            )
        return grpc.unary_unary_rpc_method_handler(self._answered(operation, method, handler.unary_unary), **kinds)

    def _answered(self, operation: Operation, method: str, behaviour: Behaviour) -> Behaviour:
        async def act(request: Any, context: Context) -> Any:
            caller = await self._authenticator.identify(context)
            if caller.role is not Role.OPERATOR:
                return await behaviour(request, context)  # the handler refuses it
            began = await self._enter(operation, method, caller, request, context)
            try:
                answer = await behaviour(request, context)
            except asyncio.CancelledError:  # work that the handler had begun may still be stored
                self._later(_ended(began, operation, request, outcome="interrupted"))
                raise
            except Exception as error:
                await self._now(_ended(began, operation, request, outcome=_outcome(error), code=_code(error)))
                raise
            await self._now(_ended(began, operation, request, answer))
            return answer

        return act

    def _streamed(self, operation: Operation, method: str, behaviour: Stream) -> Stream:
        """Watch the stream of a method that only reads."""

        async def act(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            caller = await self._authenticator.identify(context)
            if caller.role is Role.OPERATOR:
                await self._enter(operation, method, caller, request, context)
            async with contextlib.aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    yield answer

        return act

    async def _enter(
        self, operation: Operation, method: str, caller: Caller, request: Any, context: Context
    ) -> AuditEntry:
        """Find the call's scope, so that its handler runs within it; returns the start of its audit entry.

        A call that the operator's role does not allow, or that is outside its scope, is refused, and the refusal
        recorded.
        """
        began = self._entry(operation, caller, context)
        try:
            found = await self._scopes.find(operation, caller, context, request)
            scope = found.scope
            began = replace(began, project=await self._scopes.recorded(scope, operation.concern))
            if scope.role not in operation.roles and operation.concern is not Concern.SELF:
                project = scope.project or None
                names = await self._administrators(project)
                raise role_error(caller.name, scope.role, operation.roles, names, project)
            if found.refusal is not None:
                raise found.refusal
        except CallerError as error:
            await self._refused(operation, method, request, began, error)
            raise
        enter(scope)
        return began

    async def _refused(
        self, operation: Operation, method: str, request: Any, began: AuditEntry, error: CallerError
    ) -> None:
        code = error.detail.code
        entry = _ended(began, operation, request, outcome="refused", code=code)
        reading = replace(began, action=READING, subject=method.rpartition("/")[2], outcome="refused", code=code)
        await self._now(entry or reading)

    def _entry(self, operation: Operation, caller: Caller, context: Context) -> AuditEntry:
        address = address_of(self._authenticator.origin(context.peer()))
        return AuditEntry(
            0.0, caller.name, self._authenticator.credential(context), address[0] if address else "", operation.action
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
