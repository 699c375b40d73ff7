"""Answers that their caller does not take: gRPC keeps them until the connection ends, so it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from atoll.server.errors import LimitExceededError
from atoll.server.rpc.admission import Call
from atoll.server.rpc.port_bounds import Context

CODE = "stream.unread"


async def write_within(within_s: float, context: Context, response: Any) -> None:
    """Send one message of an answer.

    Raises:
        LimitExceededError: if the caller has not taken it in time.
    """
    try:
        async with asyncio.timeout(within_s):
            await context.write(response)
    except TimeoutError:
        raise unread(within_s) from None


def expect_reader(within_s: float, call: Call, give_up: Callable[[LimitExceededError], None]) -> None:
    """Call ``give_up`` if the caller does not take the one answer in time, which gRPC sends by itself."""
    timer = asyncio.get_running_loop().call_later(within_s, lambda: give_up(unread(within_s)))

    def ended(_: Any) -> None:
        timer.cancel()

    call.add_done_callback(ended)


def unread(within_s: float) -> LimitExceededError:
    """The error of a call whose caller took nothing of a message for so long."""
    return LimitExceededError(
        "stream.unread",
        f"the caller took nothing of a message for {within_s:g} s; its connection is closed",
        "read what was asked for, or cancel the call",
        retry_after_s=1.0,
    )
