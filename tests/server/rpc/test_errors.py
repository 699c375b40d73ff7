import logging
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest

from atoll.server import errors
from atoll.server.aggregation import AggregationError
from atoll.server.rpc.errors import status_of
from atoll.server.rpc.interceptor import CallInterceptor
from atoll.wire.errors import ChunkError, WireError
from atoll.wire.status import ErrorDetail, Fault
from atoll.wire.v1 import control_pb2
from tests.server.rpc.world import Refusal, refusal

EVERY = {
    errors.InvalidRequestError: "INVALID_ARGUMENT",
    errors.NotFoundError: "NOT_FOUND",
    errors.ConflictError: "FAILED_PRECONDITION",
    errors.UnauthenticatedError: "UNAUTHENTICATED",
    errors.ForbiddenError: "PERMISSION_DENIED",
    errors.LimitExceededError: "RESOURCE_EXHAUSTED",
    errors.TooLateError: "ABORTED",
    errors.UnavailableError: "UNAVAILABLE",
    errors.StorageFullError: "RESOURCE_EXHAUSTED",
    errors.StorageError: "UNAVAILABLE",
    errors.CorruptDataError: "DATA_LOSS",
    errors.SetupError: "INTERNAL",
}


class Service:
    """Handlers of all four kinds that raise what the test wants."""

    def __init__(self) -> None:
        self.error: Exception = RuntimeError("secret of the server")
        self.closed = False

    async def unary(self, _request: control_pb2.GetRunRequest, _context: Any) -> NoReturn:
        raise self.error

    async def stream_in(self, requests: AsyncIterator[control_pb2.GetRunRequest], _context: Any) -> NoReturn:
        async for _ in requests:
            pass
        raise self.error

    async def stream_out(self, _request: Any, _context: Any) -> AsyncIterator[control_pb2.GetRunRequest]:
        try:
            yield control_pb2.GetRunRequest(run="one")
            raise self.error
        finally:
            self.closed = True

    async def writing(self, _request: Any, context: Any) -> None:
        await context.write(control_pb2.GetRunRequest(run="one"))
        raise self.error

    async def both(self, requests: Any, _context: Any) -> AsyncIterator[control_pb2.GetRunRequest]:
        async for request in requests:
            yield request
        raise self.error


@pytest.fixture
async def service() -> AsyncIterator[tuple[Service, grpc.aio.Channel]]:
    made = Service()
    request: Any = {
        "request_deserializer": control_pb2.GetRunRequest.FromString,
        "response_serializer": control_pb2.GetRunRequest.SerializeToString,
    }
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(made.unary, **request),
        "In": grpc.stream_unary_rpc_method_handler(made.stream_in, **request),
        "Out": grpc.unary_stream_rpc_method_handler(made.stream_out, **request),
        "Writing": grpc.unary_stream_rpc_method_handler(made.writing, **request),
        "Both": grpc.stream_stream_rpc_method_handler(made.both, **request),
    }
    server = grpc.aio.server(interceptors=(CallInterceptor(),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield made, channel
    await server.stop(None)


KINDS = {
    "Unary": "unary_unary",
    "In": "stream_unary",
    "Out": "unary_stream",
    "Writing": "unary_stream",
    "Both": "stream_stream",
}


async def outcome(channel: grpc.aio.Channel, kind: str, message: bytes = b"") -> Refusal:
    """Call one of the handlers; returns its refusal."""

    async def messages() -> AsyncIterator[bytes]:
        yield message

    async def read_all(call: Any) -> None:
        async for _ in call:
            pass

    method: Any = getattr(channel, KINDS[kind])(f"/Test/{kind}")
    call = method(messages() if kind in {"In", "Both"} else message)
    return await refusal(call if kind in {"Unary", "In"} else read_all(call))


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_travels_with_code_fault_and_remedy(
    service: tuple[Service, grpc.aio.Channel], kind: str
) -> None:
    made, channel = service
    made.error = errors.TooLateError("round.over", "too late", "wait", retry_after_s=2.5)
    found = await outcome(channel, kind)
    assert found.status is grpc.StatusCode.ABORTED
    assert found.detail == ErrorDetail("round.over", Fault.TIMING, "too late", "wait", 2.5)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unexpected_error_is_logged_whole_and_not_sent_to_the_caller(
    service: tuple[Service, grpc.aio.Channel], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, channel = service
    with caplog.at_level(logging.ERROR):
        found = await outcome(channel, kind)
    assert found.status is grpc.StatusCode.INTERNAL
    assert found.detail is not None
    assert found.detail.code == "server.internal"
    assert "secret" not in str(found.detail)
    assert "secret of the server" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_that_are_no_message_are_the_callers_fault(
    service: tuple[Service, grpc.aio.Channel], kind: str
) -> None:
    found = await outcome(service[1], kind, b"\xff\xff\xff")
    assert found.status is grpc.StatusCode.INVALID_ARGUMENT
    assert found.detail is not None
    assert (found.detail.code, found.detail.fault) == ("wire.message", Fault.CALLER)
    assert found.detail.remedy


async def test_a_cancelled_stream_closes_its_handler(service: tuple[Service, grpc.aio.Channel]) -> None:
    made, channel = service
    found = await outcome(channel, "Out")
    assert found.status is grpc.StatusCode.INTERNAL
    assert made.closed


async def test_a_long_message_is_cut_at_a_line_and_arrives(service: tuple[Service, grpc.aio.Channel]) -> None:
    """More than 8 KiB of trailing metadata would arrive as a different error, about metadata."""
    made, channel = service
    lines = [f"job.toml:{number}: key{number} = 'ü': allowed is something else" for number in range(500)]
    made.error = errors.InvalidRequestError("job.invalid", "\n".join(lines), "é" * 10_000)
    found = await outcome(channel, "Unary")
    assert found.status is grpc.StatusCode.INVALID_ARGUMENT
    assert found.detail is not None
    *shown, rest = found.detail.message.split("\n")
    assert shown == lines[: len(shown)]
    assert len(shown) > 40
    assert rest.endswith("bytes more")


async def test_one_long_line_is_cut_too(service: tuple[Service, grpc.aio.Channel]) -> None:
    made, channel = service
    made.error = errors.NotFoundError("x", "€" * 100_000)
    found = await outcome(channel, "Unary")
    assert found.status is grpc.StatusCode.NOT_FOUND
    assert found.detail is not None
    assert found.detail.message.startswith("€" * 900)


@pytest.mark.parametrize("kind", EVERY)
def test_every_error_of_the_tree_has_a_status(kind: type[errors.ServerError]) -> None:
    known = status_of(kind("a.b", "message"))
    assert known is not None
    assert known[0].name == EVERY[kind]


def test_the_table_knows_the_whole_tree() -> None:
    def leaves(kind: type[errors.ServerError]) -> set[type[errors.ServerError]]:
        subclasses = [sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__]
        return {leaf for sub in subclasses for leaf in leaves(sub)} or {kind}

    assert leaves(errors.ServerError) | {errors.StorageError} == set(EVERY)


def test_errors_of_other_rooms() -> None:
    wire = status_of(ChunkError("bad"))
    assert wire is not None
    assert wire == (grpc.StatusCode.INVALID_ARGUMENT, ErrorDetail("wire.invalid", Fault.CALLER, "bad"))
    assert issubclass(ChunkError, WireError)
    own = status_of(AggregationError("no sum"))
    assert own is not None
    assert own[0] is grpc.StatusCode.INTERNAL
    assert status_of(KeyError("x")) is None
