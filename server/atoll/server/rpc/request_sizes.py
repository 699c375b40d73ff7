"""The largest request of each method; the size is checked before the request is parsed.

gRPC has one receive limit for all methods of a port, which must admit chunks. A parsed protobuf message can take many
times its serialised size, so every method that takes no chunks has its own limit, a few times the size that clients
send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from atoll.server.config.limits import Limits
from atoll.server.errors import InvalidRequestError, LimitExceededError
from atoll.server.rpc.tensor_count import check_tensor_count

Parse = Callable[[bytes], Any]

_TRANSFER = "/atoll.wire.v1.TransferService"
_CONTROL = "/atoll.wire.v1.ControlService"
_ENROLMENT = "/atoll.wire.v1.EnrolmentService"
CHECK_IN = "/atoll.wire.v1.ParticipationService/CheckIn"
_GATEWAY = "/atoll.wire.v1.GatewayService"
ATTEND = f"{_GATEWAY}/Attend"
WORK = f"{_GATEWAY}/Work"
CHECK_IN_ONCE = "/atoll.wire.v1.ParticipationService/CheckInOnce"
UPLOADS = frozenset({f"{_TRANSFER}/Upload", f"{_CONTROL}/UploadModel", f"{_GATEWAY}/PutPartial"})
"""Streams of chunks, whose pace ``authentication.Watch`` checks."""
SUBMIT = f"{_CONTROL}/SubmitRun"
"""This method takes a job and the layout of its model, which are both checked separately."""

_KIB = 1 << 10
NAMES_BYTES = 4 * _KIB
"""Maximum bytes of a request that ``MOST_BYTES`` does not list: a few names and numbers."""
MOST_BYTES = {
    CHECK_IN: 64 * _KIB,  # 32 labels of 256 characters of up to 4 bytes, and 64 live rounds
    CHECK_IN_ONCE: 128 * _KIB,  # the same, and 16 answers with reasons of 1,024 characters
    f"{_ENROLMENT}/Enrol": 32 * _KIB,  # a certificate or a request for one takes about 1 KiB
    f"{_ENROLMENT}/RenewExpired": 32 * _KIB,
    "/atoll.wire.v1.RenewalService/Renew": 32 * _KIB,
    ATTEND: 96 * _KIB,  # a hello as in CHECK_IN, with a certificate
    WORK: 16 * _KIB,  # an error
    f"{_GATEWAY}/CertifyServer": 32 * _KIB,
    f"{_GATEWAY}/Enrol": 33 * _KIB,  # an enrolment, and where it came from
    "/atoll.wire.v1.CoordinatorService/Identify": 32 * _KIB,
    f"{_CONTROL}/CreateOperator": 32 * _KIB,
    f"{_CONTROL}/VoidTokens": 64 * _KIB,  # 1,000 ids
    f"{_CONTROL}/CancelRun": 32 * _KIB,  # the operator's reason, which is truncated
    f"{_CONTROL}/RevokeParticipant": 32 * _KIB,  # as CancelRun
    f"{_CONTROL}/RevokeOperator": 32 * _KIB,  # as CancelRun
}
"""Maximum bytes of a request, by method."""
BY_SETTING = (f"{_TRANSFER}/Report", f"{_TRANSFER}/Download", "/atoll.wire.v1.CoordinatorService/Commit")
"""Methods whose requests ``Limits.request_bytes`` bounds: metrics and a small update, or a list of wanted chunks."""


def most_bytes(method: str, limits: Limits) -> int:
    """The largest request of a method, such as ``/atoll.wire.v1.TransferService/Report``, in bytes."""
    if method == SUBMIT or method in UPLOADS:
        return limits.message_bytes
    return limits.request_bytes if method in BY_SETTING else MOST_BYTES.get(method, NAMES_BYTES)


def parser_of(method: str, deserialise: Parse | None, limits: Limits | None) -> Parse:
    """A function that checks the size of a raw message and then parses it.

    Args:
        method: full name of the method.
        deserialise: parses a message that is not too large; None to pass it on unparsed.
        limits: the limits of the port; None: only gRPC's own limit applies.
    """
    most = None if limits is None else most_bytes(method, limits)

    def parse(raw: bytes) -> Any:
        if most is not None and len(raw) > most:
            raise LimitExceededError("request.bytes", f"a request of {len(raw)} bytes; at most {most}", "send less")
        if method == SUBMIT and limits is not None:
            check_tensor_count(raw)
        if deserialise is None:
            return raw  # chunks pass unparsed
        try:
            return deserialise(raw)
        except DecodeError as error:
            raise InvalidRequestError(
                "wire.message", f"the message cannot be read: {error}", "use a client of this protocol version"
            ) from None

    return parse
