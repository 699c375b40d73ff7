"""Blocking functions in threads, awaited by the event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(executor: Executor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Start a blocking function in a thread, with the caller's context, so that its log lines have the caller's fields.

    Cancelling the future, or the task that awaits it, does not wait: a function that has not begun never runs, and one
    that has begun runs to its end. If the thread uses what the caller holds, the caller awaits ``to_end`` of the future
    instead.
    """
    running = partial(contextvars.copy_context().run, function, *args, **kwargs)
    return asyncio.get_running_loop().run_in_executor(executor, running)


async def to_end(running: asyncio.Future[T]) -> T:
    """Wait for a thread's function, even if the caller is cancelled; the cancellation is raised after its end.

    A function that has not begun is then run too. Needed where the thread uses what the caller holds: a file, a memory
    map, an accumulator, a lock. A second cancellation does not wait.
    """
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise
