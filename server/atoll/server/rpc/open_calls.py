"""The open calls, by caller: a revocation ends them at once, at any await."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

import grpc.aio

from atoll.server.errors import ServerError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.rpc.connections import Connections
from atoll.server.rpc.errors import refuse

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
CLOSE_S = 2.0
"""Seconds between ending a revoked caller's calls and closing its connections, for the caller to read the status."""


class OpenCalls:
    """Ends calls. Single-threaded: only the event loop uses it.

    A handler whose caller does not read is suspended in its ``yield``, where a cancellation would hit the surrounding
    code that writes. A separate task therefore sends the status. Such a caller does not see the status, and gRPC keeps
    the unread messages, so the connection is closed after a while.

    Args:
        connections: the connections of the calls' port.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._open: dict[Caller, dict[asyncio.Task[Any], Context]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def begin(self, caller: Caller, context: Context) -> None:
        """Record that the running task handles a call of ``caller``.

        Call it right after identification, with no await in between: a caller that was revoked earlier is refused
        there, and calls of one that is revoked later are ended here.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call is handled in a task")
        self._open.setdefault(caller, {})[task] = context
        ended: Any = lambda _: self._forget(caller, task)  # noqa: E731 - gRPC's stubs take no function
        context.add_done_callback(ended)

    def end(self, caller: Caller, error: ServerError) -> None:
        """End all calls of a caller with ``error``, except the running one, and close their connections."""
        asking = asyncio.current_task()
        found = [(task, context) for task, context in self._open.get(caller, {}).items() if task is not asking]
        for task, context in found:
            if task.cancel():
                self._begin(self._shut_out(context, error))
        if found:
            log.info("%d calls of %s ended: %s", len(found), caller.name, error.detail.code)

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def _forget(self, caller: Caller, task: asyncio.Task[Any]) -> None:
        calls = self._open.get(caller)
        if calls is not None:
            calls.pop(task, None)
            if not calls:
                del self._open[caller]

    def _begin(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _shut_out(self, context: Context, error: ServerError) -> None:
        peer = context.peer()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await _end(context, error)
                await asyncio.sleep(CLOSE_S)
        self._connections.close(peer)


async def _end(context: Context, error: ServerError) -> None:
    # Sent, or the call has ended meanwhile, or its answer is already on its way and waits to be read.
    with contextlib.suppress(grpc.aio.AbortError, grpc.aio.UsageError, grpc.aio.InternalError):
        await refuse(context, error, "a call that was ended")
