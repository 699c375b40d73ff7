"""The calls under way, by caller: a revocation ends them at once, wherever they wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc.aio

from atoll.server.errors import ServerError
from atoll.server.ingest.desk import Caller
from atoll.server.rpc import peers
from atoll.server.rpc.errors import refuse

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
CLOSE_S = 2.0
"""After a call was ended its connection is closed: the caller has so long to take the status."""


class OpenCalls:
    """Ends the calls of a caller. Single-threaded: only the event loop touches it."""

    def __init__(self) -> None:
        self._open: dict[Caller, dict[asyncio.Task[Any], Context]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def begin(self, caller: Caller, context: Context) -> None:
        """The running task handles a call of ``caller`` from now on.

        Call it right after identification, with no await between: what is revoked before is refused there, what is
        revoked later ends here.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call is handled in a task")
        self._open.setdefault(caller, {})[task] = context
        ended: Any = lambda _: self._forget(caller, task)  # noqa: E731 - gRPC's stubs take no function
        context.add_done_callback(ended)

    def end(self, caller: Caller, error: ServerError) -> None:
        """End every call of ``caller`` with ``error``, but for the one that asks for it."""
        asking = asyncio.current_task()
        found = [(task, context) for task, context in self._open.get(caller, {}).items() if task is not asking]
        for task, context in found:
            end_call(task, context, error, self._ending)
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


def end_call(task: asyncio.Task[Any], context: Context, error: ServerError, ending: set[asyncio.Task[None]]) -> None:
    """End a call with ``error`` even where its handler waits for a peer that does not read.

    There the handler is suspended in its ``yield``, and the cancellation strikes the code outside it that writes: so
    the status is sent by a task of its own, which ``ending`` keeps alive. Such a peer would not see it, and what waits
    to be read would stay in gRPC: so its connection is closed a moment later.
    """
    if task.cancel():
        sending = asyncio.get_running_loop().create_task(_end(context, error))
        ending.add(sending)
        sending.add_done_callback(ending.discard)


async def _end(context: Context, error: ServerError) -> None:
    peer = context.peer()
    # Sent; or the call has ended meanwhile; or its answer is on its way already, and waits for its reader.
    with contextlib.suppress(grpc.aio.AbortError, grpc.aio.UsageError, grpc.aio.InternalError):
        await refuse(context, error, "a call that was ended")
    await asyncio.sleep(CLOSE_S)
    await asyncio.get_running_loop().run_in_executor(None, peers.cut, peer)
