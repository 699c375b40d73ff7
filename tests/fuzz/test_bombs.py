"""Bombs (``bombs``) sent to a real server process: each is refused, and its memory grows by less than 64 MB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from atoll.wire.loopback import INSECURE_OPERATOR, INSECURE_PARTICIPANT
from tests.fuzz.bombs import Bomb, bombs
from tests.fuzz.memory import GROWTH_BYTES, forget_peak, peak_bytes
from tests.patience import WAIT_S
from tests.system.processes import nursery
from tests.system.servers import Server, serving

OPERATORS = "ControlService"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        nursery(tmp_path_factory.mktemp("bombed")) as processes,
        serving(processes, "bombed", insecure=True) as made,
    ):
        yield made


def throw(server: Server, bomb: Bomb, **options: Any) -> grpc.StatusCode:
    """Send one message; the status that comes of it."""
    who = (INSECURE_OPERATOR, "1") if OPERATORS in bomb.method else (INSECURE_PARTICIPANT, "paaaaaaaaaaaa")
    with grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        call: Any = (channel.stream_unary if bomb.streaming else channel.unary_unary)(bomb.method)
        try:
            call(iter([bomb.message]) if bomb.streaming else bomb.message, timeout=WAIT_S, metadata=[who], **options)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_bombs_are_refused_without_growth(server: Server) -> None:
    found = {}
    for bomb in bombs():
        before = forget_peak(server.process.pid)
        status = throw(server, bomb)
        found[bomb.name] = (status.name, max(0, peak_bytes(server.process.pid) - before) >> 20)
    refusals = {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND"}
    assert not {name: how for name, how in found.items() if how[0] not in refusals or how[1] >= 64}, found
    assert server.operator.participants() == {}  # it still answers


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_what_was_compressed_is_not_inflated(server: Server, how: grpc.Compression) -> None:
    bomb = Bomb("zeros", "/atoll.wire.v1.TransferService/Upload", True, bytes(256 << 20))
    before = forget_peak(server.process.pid)
    status = throw(server, bomb, compression=how)
    assert status in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert peak_bytes(server.process.pid) - before < GROWTH_BYTES


def test_metadata_without_end(server: Server) -> None:
    before = forget_peak(server.process.pid)
    bomb = Bomb("metadata", "/atoll.wire.v1.TransferService/GetManifest", False, b"")
    for count, size in ((100, 10), (4, 10_000), (10, 60_000), (20_000, 20)):
        extra = [(f"x-{number}", "v" * size) for number in range(count)]
        with grpc.insecure_channel(server.address) as channel:
            call: Any = channel.unary_unary(bomb.method)
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=WAIT_S, metadata=[(INSECURE_PARTICIPANT, "paaaaaaaaaaaa"), *extra])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, (count, size, caught.value)
    assert peak_bytes(server.process.pid) - before < GROWTH_BYTES
