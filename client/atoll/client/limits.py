"""All limits of the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atoll.wire.pacing import LONGEST_RETRY_S

CheckInWay = Literal["stream", "unary"]
"""How a participant checks in: over a stream that stays open, or with single calls at times that the server sets."""


@dataclass(frozen=True)
class Limits:
    """Times and sizes that the client does not exceed.

    Attributes:
        connect_s: longest wait for a connection and the server's welcome.
        call_s: longest wait for the answer to a small request.
        stall_s: a transfer without progress for this long is cancelled and resumed.
        backoff_base_s: first delay before a retry; doubles, with full jitter.
        backoff_cap_s: longest delay before a retry, unless the server asks for a larger spread.
        return_spread_s: largest spread of reconnects that the server may ask for.
        hold_s: longest time that the server may hold a unary check-in, in case it has a task.
        return_after_cap_s: longest time between two unary check-ins that the server may ask for.
        retry_after_cap_s: longest wait that the server may ask for when it refuses a call for now.
        give_up_after_s: how long the server may be unreachable before the session ends.
        late_grace_s: how long after the deadline a finished update is still offered, unless the round is gone.
        drain_s: longest wait for the trainer and the server when the session is stopped.
        cached_models: downloaded models kept on disk; at least 1.
    """

    connect_s: float = 20.0
    call_s: float = 30.0
    stall_s: float = 30.0
    backoff_base_s: float = 0.2
    backoff_cap_s: float = LONGEST_RETRY_S
    return_spread_s: float = 600.0
    hold_s: float = 60.0
    return_after_cap_s: float = 24 * 3600.0
    retry_after_cap_s: float = 3600.0
    give_up_after_s: float = 24 * 3600.0
    late_grace_s: float = 3600.0
    drain_s: float = 5.0
    cached_models: int = 2
