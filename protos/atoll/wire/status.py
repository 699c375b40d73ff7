"""How errors travel: a gRPC status with an ``ErrorDetail`` in the trailer ``atoll-error-bin``.

The detail states whose fault the error is and what the caller can do. Its code is stable and listed in
docs/protocol.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.message import DecodeError

from atoll.wire.v1 import errors_pb2

ERROR_TRAILER = "atoll-error-bin"


class Fault(IntEnum):
    """Whose fault an error is."""

    CALLER = 1
    SERVER = 2
    TIMING = 3


class Recovery(IntEnum):
    """What the caller can do about an error.

    REPEAT: send the same call again later. CHANGE: do what the remedy says; the task can then go on. NEXT_TASK: give up
    the task and wait for the next one. ENROL: no call will succeed with this identity. UNSPECIFIED: follows from the
    fault; an ``ErrorDetail`` replaces it by what follows.
    """

    UNSPECIFIED = 0
    REPEAT = 1
    CHANGE = 2
    NEXT_TASK = 3
    ENROL = 4


_FAULTS = {int(fault): fault for fault in Fault}
_RECOVERIES = {int(recovery): recovery for recovery in Recovery}


@dataclass(frozen=True)
class ErrorDetail:
    """What went wrong and what to do next.

    Attributes:
        code: stable, machine readable, ``area.what``.
        fault: whose fault it is.
        message: what happened, with the values.
        remedy: what to do next, in words.
        retry_after_s: minimum seconds before the call is repeated; None leaves the delay to the caller.
        recovery: what the caller can do.
    """

    code: str
    fault: Fault
    message: str
    remedy: str = ""
    retry_after_s: float | None = None
    recovery: Recovery = Recovery.UNSPECIFIED

    def __post_init__(self) -> None:
        if self.recovery is Recovery.UNSPECIFIED:
            object.__setattr__(self, "recovery", _by_fault(self.fault, self.retry_after_s))

    def trailer(self) -> tuple[str, bytes]:
        """The metadata pair that carries this detail."""
        return ERROR_TRAILER, self.to_proto().SerializeToString()

    def to_proto(self) -> errors_pb2.ErrorDetail:
        """This detail as its protobuf message."""
        return errors_pb2.ErrorDetail(
            code=self.code,
            fault=errors_pb2.Fault.ValueType(self.fault),
            message=self.message,
            remedy=self.remedy,
            retry_after_s=self.retry_after_s or 0.0,
            recovery=errors_pb2.Recovery.ValueType(self.recovery),
        )

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


def detail_from_trailers(trailers: Iterable[tuple[str, str | bytes]]) -> ErrorDetail | None:
    """The error detail in the trailing metadata; None if there is none or it cannot be read."""
    for key, value in trailers:
        if key == ERROR_TRAILER and isinstance(value, bytes):
            try:
                message = errors_pb2.ErrorDetail.FromString(value)
            except DecodeError:
                return None
            return detail_from_proto(message)
    return None


def detail_from_proto(message: errors_pb2.ErrorDetail) -> ErrorDetail:
    """The error detail of a protobuf message."""
    wait_s = message.retry_after_s
    return ErrorDetail(
        code=message.code,
        fault=_FAULTS.get(message.fault, Fault.SERVER),
        message=message.message,
        remedy=message.remedy,
        retry_after_s=wait_s if 0.0 < wait_s < math.inf else None,
        recovery=_RECOVERIES.get(message.recovery, Recovery.UNSPECIFIED),
    )


def _by_fault(fault: Fault, retry_after_s: float | None) -> Recovery:
    """The recovery that follows from a fault (docs/protocol.md, "Errors")."""
    if fault is Fault.TIMING:
        return Recovery.NEXT_TASK
    if fault is Fault.CALLER and retry_after_s is None:
        return Recovery.CHANGE
    return Recovery.REPEAT
