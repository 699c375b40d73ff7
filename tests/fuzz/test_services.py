"""Every RPC of the contract, from each role that may call it, with messages of every kind.

For any message the caller gets a status that says whose fault it was, the server logs no bug of its own, does not grow
by 64 MB, and goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from atoll.wire.status import detail_from_trailers
from atoll.wire.v1 import control_pb2, enrolment_pb2, gateway_pb2, ingest_pb2, participation_pb2, transfer_pb2
from tests.fuzz.conftest import Live
from tests.fuzz.material import FUZZ, requests
from tests.fuzz.memory import GROWTH_BYTES, forget_peak, peak_bytes

FILES = (control_pb2, enrolment_pb2, participation_pb2, transfer_pb2, ingest_pb2, gateway_pb2)
ELSEWHERE = {"SignInService"}
"""Served on a port of its own, with an identity provider: ``tests/server/rpc/test_token_authentication.py``."""
METHODS = [
    method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if service.name not in ELSEWHERE
]
INSIDE = {"CoordinatorService", "WorkerService"}
BUGS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL}
WITHOUT_DETAIL = {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
OWN_END = "Internal error from Core"
"""gRPC's texts for a stream that the server ended while a message was being sent."""
CALL_S = 20.0
READ_S = 0.1
"""A stream that answers at all does so within this time; one that waits for more is left."""


async def ask(channel: grpc.aio.Channel, method: MethodDescriptor, sent: list[bytes]) -> grpc.aio.AioRpcError | None:
    """Call with these messages; the error that comes of it, None if there is none (yet)."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    begin: Any = getattr(channel, kind)(path)

    async def each() -> Any:
        for message in sent:
            yield message

    call = begin(each() if method.client_streaming else sent[0], timeout=CALL_S)
    try:
        if not method.server_streaming:
            await call
            return None
        async with asyncio.timeout(READ_S):
            while await call.read() is not grpc.aio.EOF:
                continue
        await call.code()
    except grpc.aio.AioRpcError as error:
        return error
    except TimeoutError:
        call.cancel()
    return None


def check(live: Live, error: grpc.aio.AioRpcError | None) -> None:
    assert not live.errors, live.errors.pop()
    if error is None or error.details() == OWN_END:
        return
    detail = detail_from_trailers(list(error.trailing_metadata() or ()))
    assert error.code() not in BUGS, error
    assert detail is not None or error.code() in WITHOUT_DETAIL, error
    if detail is not None:
        assert detail.code != "server.internal", error
        assert detail.message


def sent_to(method: MethodDescriptor) -> st.SearchStrategy[list[bytes]]:
    one = requests(GetMessageClass(method.input_type))
    return st.lists(one, min_size=1, max_size=3 if method.client_streaming else 1)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.containing_service.name}.{method.name}")
def test_every_rpc_tells_whose_fault_it_is(
    live: Live, method: MethodDescriptor, record_property: Callable[[str, object], None]
) -> None:
    service = method.containing_service.name

    async def callers(sent: list[bytes]) -> list[grpc.aio.AioRpcError | None]:
        if service in INSIDE:
            async with grpc.aio.insecure_channel(live.inside) as channel:
                return [await ask(channel, method, sent)]
        if service == "EnrolmentService":
            return [await ask(live.outsider, method, sent)]
        channels = (live.operator.channel, live.participant.channel, live.member.channel)
        return list(await asyncio.gather(*(ask(channel, method, sent) for channel in channels)))

    @FUZZ
    @given(sent_to(method))
    def every(sent: list[bytes]) -> None:
        for error in live.call(callers(sent)):
            check(live, error)

    before = forget_peak(os.getpid())
    every()
    grown = peak_bytes(os.getpid()) - before  # of the server, its callers and what makes up the messages, all in one
    record_property("grown_mb", grown / 1e6)
    assert grown < GROWTH_BYTES
