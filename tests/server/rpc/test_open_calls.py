"""Ended calls: their connection is closed, whether or not the status was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import grpc.aio
import pytest

from atoll.server.errors import UnavailableError
from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.rpc import open_calls
from atoll.server.rpc.connections import Connections
from atoll.server.rpc.open_calls import OpenCalls
from tests.patience import WAIT_S

ERROR = UnavailableError("a.b", "over", "later")
PEER = "ipv4:127.0.0.9:5"
CALLER = Caller(Role.PARTICIPANT, "someone")


class Context:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self._over: list[Callable[[Any], None]] = []

    def peer(self) -> str:
        return PEER

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._over.append(callback)

    def end(self) -> None:
        for callback in self._over:
            callback(self)


class Noted(Connections):
    """Records the connections to close."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[str] = []
        self.some = asyncio.Event()

    def close(self, peer: str) -> None:
        self.closed.append(peer)
        self.some.set()


class Rig:
    def __init__(self) -> None:
        self.connections = Noted()
        self.calls = OpenCalls(self.connections)
        self.context = Context()
        self.handler = asyncio.create_task(self._handle())

    async def _handle(self) -> None:
        self.calls.begin(CALLER, cast("Any", self.context))
        await asyncio.Event().wait()

    async def ended(self) -> None:
        await asyncio.gather(self.handler, *self.calls._ending, return_exceptions=True)


@pytest.fixture
async def rig() -> Rig:
    made = Rig()
    await asyncio.sleep(0)
    assert len(made.calls) == 1
    return made


@pytest.mark.parametrize("error", [grpc.aio.AbortError(), grpc.aio.UsageError(), grpc.aio.InternalError(), None])
async def test_the_connection_of_a_caller_that_is_shut_out_is_closed_whatever_became_of_the_status(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """gRPC refuses the status with an internal error if an answer in flight waits for its reader."""

    async def refuse(*_: object) -> None:
        if error is None:
            await asyncio.Event().wait()
        raise error or AssertionError

    monkeypatch.setattr(open_calls, "refuse", refuse)
    monkeypatch.setattr(open_calls, "CLOSE_S", 0.01)
    rig.calls.end(CALLER, ERROR)
    await asyncio.wait_for(rig.connections.some.wait(), WAIT_S)
    assert rig.connections.closed == [PEER]
    await rig.ended()
