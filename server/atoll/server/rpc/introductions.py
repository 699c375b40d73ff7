"""Checks participants' declarations and their answers to tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from atoll.server.errors import InvalidRequestError
from atoll.server.runs.session import Introduction
from atoll.text.printable import printable
from atoll.wire.encoding import Encoding
from atoll.wire.messages import PROTOCOL
from atoll.wire.v1 import participation_pb2

MAX_LABELS = 32
MAX_LABEL_CHARS = 256
MAX_REASON_CHARS = 1024
MAX_EXAMPLES = 2**40
MAX_RESUMING = 64
_ENCODINGS = {item.value: item for item in Encoding}
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


def introduction_of(hello: participation_pb2.Hello, *, unary: bool = False) -> Introduction:
    """A participant's declarations; ``unary`` if it checked in by a unary call.

    Raises:
        InvalidRequestError: for another protocol, or for declarations beyond the limits.
    """
    if hello.protocol < 1:
        raise InvalidRequestError("checkin.protocol", f"protocol {hello.protocol}: this server speaks {PROTOCOL}")
    _check_bounds(hello)
    return Introduction(
        examples=hello.examples,
        encodings=_encodings(frozenset(_ENCODINGS.keys() & hello.encodings)),
        can_evaluate=hello.can_evaluate,
        client_version=printable(hello.client_version[:64]),
        labels=_labels(hello),
        resuming=frozenset((key.run, key.round, key.attempt) for key in hello.resuming),
        unary=unary,
    )


def bounded(reply: participation_pb2.TaskReply) -> participation_pb2.TaskReply:
    """The reply with its reason cut short and made printable."""
    reply.reason = printable(reply.reason[:MAX_REASON_CHARS])
    return reply


@cache
def _encodings(numbers: frozenset[int]) -> frozenset[Encoding]:
    """The encodings with these numbers; one object for all participants that declare the same."""
    return frozenset(_ENCODINGS[number] for number in numbers)


def _labels(hello: participation_pb2.Hello) -> Mapping[str, str]:
    found = {printable(name): printable(value) for name, value in hello.labels.items()}
    return MappingProxyType(found) if found else _NO_LABELS


def _check_bounds(hello: participation_pb2.Hello) -> None:
    if hello.examples > MAX_EXAMPLES:
        raise InvalidRequestError("checkin.examples", f"examples {hello.examples}: at most {MAX_EXAMPLES}")
    if len(hello.resuming) > MAX_RESUMING:
        raise InvalidRequestError(
            "checkin.resuming", f"{len(hello.resuming)} rounds in progress: at most {MAX_RESUMING}"
        )
    too_long = [name[:40] for name, value in hello.labels.items() if len(name) + len(value) > MAX_LABEL_CHARS]
    if len(hello.labels) > MAX_LABELS or too_long:
        raise InvalidRequestError(
            "checkin.labels",
            f"at most {MAX_LABELS} labels of at most {MAX_LABEL_CHARS} characters; over: {too_long[:3]}",
        )
