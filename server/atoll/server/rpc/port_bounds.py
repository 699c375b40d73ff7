"""The limits of all calls on one port: who may call, how much may arrive at once, and how fast it must arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from atoll.server.config.limits import MIB, Limits
from atoll.server.rpc import peers
from atoll.server.rpc.answers import Answers
from atoll.server.rpc.connections import Connections
from atoll.server.rpc.intake import Intake

Context = grpc.aio.ServicerContext[Any, Any]
Enter = Callable[[str, Context], Awaitable[str]]
"""Admits a call before its request is received; returns the name that its messages are counted for."""

_CHUNKS_TO_REQUESTS = 4
"""Number of arriving chunks that a caller may have for each other arriving message; other messages are small."""


async def by_address(_: str, context: Context) -> str:
    """An ``Enter`` for anonymous callers: counts by address."""
    return peers.network_of(context.peer())


@dataclass(frozen=True)
class Bounds:
    """The limits of calls on one port.

    Attributes:
        limits: the limits on size and pace of messages.
        enter: see ``Enter``.
        connections: closes connections of callers that do not read.
        request_s: seconds within which a request must be complete.
        requests: slots for arriving messages other than chunks.
        chunks: slots for arriving chunks.
        answers: answers that callers have not read yet.
    """

    limits: Limits
    enter: Enter
    connections: Connections
    request_s: float
    requests: Intake
    chunks: Intake
    answers: Answers

    @classmethod
    def named(cls, limits: Limits, message_bytes: int, enter: Enter, connections: Connections) -> Bounds:
        """Bounds for a port that takes messages of up to ``message_bytes`` from identified callers."""
        each = max(1, limits.arriving_mib_per_caller * MIB // message_bytes)
        most = max(1, limits.arriving_mib * MIB // message_bytes)
        requests = Intake(max(1, each // _CHUNKS_TO_REQUESTS), most)
        chunks = Intake(each, most)
        return cls(limits, enter, connections, limits.request_s, requests, chunks, Answers(limits))

    @classmethod
    def nameless(
        cls, limits: Limits, enter: Enter, connections: Connections, *, each: int, most: int, request_s: float
    ) -> Bounds:
        """Bounds for a port with anonymous callers; ``each`` is the limit of an address."""
        requests = Intake(each, most)
        request_s = min(request_s, limits.request_s)
        return cls(limits, enter, connections, request_s, requests, requests, Answers(limits))
