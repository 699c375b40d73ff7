"""Time limits on reading streams: gRPC keeps an unread message until the connection ends, so it is closed."""

from __future__ import annotations

import asyncio
from typing import Any

from atoll.server.errors import LimitExceededError
from atoll.server.rpc.port_bounds import Context


async def write_within(within_s: float, context: Context, response: Any) -> None:
    """Send one message of an answer.

    Raises:
        LimitExceededError: if the caller has not read it in time.
    """
    try:
        async with asyncio.timeout(within_s):
            await context.write(response)
    except TimeoutError:
        raise unread(within_s) from None


def unread(within_s: float) -> LimitExceededError:
    """The error of a call whose caller did not read a message in time."""
    return LimitExceededError(
        "stream.unread",
        f"the caller took nothing of a message for {within_s:g} s; its connection is closed",
        "read what was asked for, or cancel the call",
        retry_after_s=1.0,
    )
