"""Calls that are ended: the connection is closed after, whatever became of the status."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc.aio
import pytest

from atoll.server.errors import UnavailableError
from atoll.server.rpc import open_calls, peers
from tests.patience import WAIT_S


class Context:
    def peer(self) -> str:
        return "ipv4:127.0.0.9:5"


@pytest.mark.parametrize("error", [grpc.aio.AbortError(), grpc.aio.UsageError(), grpc.aio.InternalError()])
async def test_the_connection_is_closed_whatever_became_of_the_status(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """gRPC refuses the status with an internal error where the answer is on its way and waits for its reader."""
    loop, cut = asyncio.get_running_loop(), asyncio.Event()
    closed: list[str] = []

    async def refuse(*_: object) -> None:
        raise error

    def note(peer: str) -> bool:
        closed.append(peer)
        loop.call_soon_threadsafe(cut.set)
        return True

    monkeypatch.setattr(open_calls, "refuse", refuse)
    monkeypatch.setattr(open_calls, "CLOSE_S", 0.0)
    monkeypatch.setattr(peers, "cut", note)
    ending: set[asyncio.Task[None]] = set()
    blocked = asyncio.create_task(asyncio.Event().wait())
    open_calls.end_call(blocked, cast("Any", Context()), UnavailableError("a.b", "over", "later"), ending)
    await asyncio.wait_for(cut.wait(), WAIT_S)
    assert closed == ["ipv4:127.0.0.9:5"]
    await asyncio.gather(blocked, *ending, return_exceptions=True)
