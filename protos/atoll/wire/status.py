"""How errors travel: a gRPC status with an ``ErrorDetail`` in the trailer ``atoll-error-bin``.

The detail says whose fault it was and what to do next; its code is stable and listed in docs/protocol.md.
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
    """Whose fault an error was."""

    CALLER = 1
    SERVER = 2
    TIMING = 3


_FAULTS = {int(fault): fault for fault in Fault}


@dataclass(frozen=True)
class ErrorDetail:
    """What went wrong and what to do next; ``retry_after_s`` is None when the same call should not be repeated."""

    code: str
    fault: Fault
    message: str
    remedy: str = ""
    retry_after_s: float | None = None

    def trailer(self) -> tuple[str, bytes]:
        """The metadata pair that carries this detail."""
        message = errors_pb2.ErrorDetail(
            code=self.code,
            fault=errors_pb2.Fault.ValueType(self.fault),
            message=self.message,
            remedy=self.remedy,
            retry_after_s=self.retry_after_s or 0.0,
        )
        return ERROR_TRAILER, message.SerializeToString()

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


def detail_from_trailers(trailers: Iterable[tuple[str, str | bytes]]) -> ErrorDetail | None:
    """The error detail among the trailing metadata; None if there is none that can be read."""
    for key, value in trailers:
        if key == ERROR_TRAILER and isinstance(value, bytes):
            try:
                message = errors_pb2.ErrorDetail.FromString(value)
            except DecodeError:
                return None
            fault = _FAULTS.get(message.fault, Fault.SERVER)
            wait_s = message.retry_after_s
            return ErrorDetail(
                message.code, fault, message.message, message.remedy, wait_s if 0.0 < wait_s < math.inf else None
            )
    return None
