"""Small messages that would become large objects, so a server must refuse them before it parses them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atoll.wire.v1 import participation_pb2

MESSAGE_BYTES = 4 << 20
"""The largest message that a server takes by default, about."""


@dataclass(frozen=True)
class Bomb:
    """A serialised request, and the method that it is for."""

    name: str
    method: str
    streaming: bool
    message: bytes


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _nested(number: int, depth: int) -> bytes:
    message = b""
    for _ in range(depth):
        message = _field(number, message)
    return message


def _tensors(count: int, shape: bytes) -> bytes:
    """A ``SubmitRunRequest`` with a layout of tensors that differ in nothing."""
    tensor = _field(1, _field(1, b"w") + _field(2, shape) + b"\x18\x01")
    return _field(3, tensor * count)


def bombs() -> Iterator[Bomb]:
    """One of each kind."""
    check_in = "/atoll.wire.v1.ParticipationService/CheckIn"
    submit = "/atoll.wire.v1.ControlService/SubmitRun"
    empty = _field(7, b"")
    yield Bomb("hello with 2 million rounds", check_in, True, _field(1, empty * (MESSAGE_BYTES // len(empty))))
    small = _field(1, empty * ((250 << 10) // len(empty)))
    yield Bomb("hello with 125,000 rounds", check_in, True, small)
    labels = b"".join(_field(4, _field(1, str(n).encode()) + _field(2, b"")) for n in range(20_000))
    yield Bomb("hello with 20,000 labels", check_in, True, _field(1, labels[: 250 << 10]))
    yield Bomb("a layout of 2 million empty tensors", submit, False, _field(3, b"\x0a\x00" * (MESSAGE_BYTES // 2)))
    yield Bomb("a layout of 400,000 tensors", submit, False, _tensors(400_000, b"\x01"))
    yield Bomb("a tensor of 4 million sides", submit, False, _tensors(1, b"\x01" * (MESSAGE_BYTES - 64)))
    overflow = _varint(2**63 - 1)
    yield Bomb("a shape whose product overflows", submit, False, _tensors(1, overflow * 16))
    metrics = b"".join(_field(9, _field(1, str(n).encode()) + b"\x11" + bytes(8)) for n in range(200_000))
    yield Bomb("a report with 200,000 metrics", "/atoll.wire.v1.TransferService/Report", False, metrics[:MESSAGE_BYTES])
    yield Bomb("messages within messages", submit, False, _nested(3, 10_000))
    unknown = _field(1000, b"") * (MESSAGE_BYTES // 3)
    yield Bomb("unknown fields", "/atoll.wire.v1.ControlService/GetRun", False, unknown[: MESSAGE_BYTES // 3 * 3])
    hello = participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=1)).SerializeToString()
    yield Bomb("hello said a million times", check_in, True, hello * (MESSAGE_BYTES // len(hello) // 2))
    chunk = _field(2, _field(1, b"\x08\x01" * (MESSAGE_BYTES // 4)))
    yield Bomb("a chunk whose range comes a million times", "/atoll.wire.v1.TransferService/Upload", True, chunk)
