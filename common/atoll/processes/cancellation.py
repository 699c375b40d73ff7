"""Cancelled tasks that call over gRPC."""

from __future__ import annotations

import asyncio


def keep_cancellation() -> None:
    """Raise ``asyncio.CancelledError`` if the running task is being cancelled; call it before a call is repeated.

    If a call ends in the moment in which the task that awaits it is cancelled, grpc.aio raises the call's status
    instead of the cancellation. A task that then repeated the call would never end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
