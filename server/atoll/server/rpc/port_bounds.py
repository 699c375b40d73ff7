"""What holds for all calls on one port: who may call, how much may be on its way, how fast it must be."""

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
"""Begins a call of a method before any of its request is received; gives the name that its messages count for."""

_CHUNKS_TO_REQUESTS = 4
"""A caller may have so many chunks arriving for each other message: those are small, and soon there."""


async def by_address(_: str, context: Context) -> str:
    """An ``Enter`` for those who have no name."""
    return peers.network_of(context.peer())


@dataclass(frozen=True)
class Bounds:
    """What holds for calls on one port.

    Attributes:
        limits: how large and how slow messages may be.
        enter: see ``Enter``.
        connections: closes those of callers that do not read.
        request_s: seconds within which a request must be whole.
        requests: where messages arrive, other than chunks.
        chunks: where chunks arrive.
        answers: those that callers have not taken yet.
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
        """For a port that takes messages of up to ``message_bytes`` from callers with names."""
        each = max(1, limits.arriving_mib_per_caller * MIB // message_bytes)
        most = max(1, limits.arriving_mib * MIB // message_bytes)
        requests = Intake(max(1, each // _CHUNKS_TO_REQUESTS), most)
        chunks = Intake(each, most)
        return cls(limits, enter, connections, limits.request_s, requests, chunks, Answers(limits))

    @classmethod
    def nameless(
        cls, limits: Limits, enter: Enter, connections: Connections, *, each: int, most: int, request_s: float
    ) -> Bounds:
        """For a port whose callers have no names: ``each`` is for an address."""
        requests = Intake(each, most)
        request_s = min(request_s, limits.request_s)
        return cls(limits, enter, connections, request_s, requests, requests, Answers(limits))
