"""How often participants check in: ``[check_in]`` of ``server.toml``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class CheckInSettings(BaseModel):
    """Times and rates of check-ins: of participants that hold no stream, and after an outage of all participants."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    per_s: Annotated[
        float,
        Field(
            ge=1.0,
            le=100_000.0,
            description="Check-ins that the server asks for in a second. It admits twice as many, and gives the others "
            "a later time. A phone's costs a TLS handshake.",
        ),
    ] = 250.0
    period_s: Annotated[
        float,
        Field(
            ge=1.0,
            le=86_400.0,
            description="Seconds from one unary check-in of a participant to the next, at least. If they are few, they "
            "come together, once in this time.",
        ),
    ] = 60.0
    hold_s: Annotated[
        float,
        Field(
            ge=0.0,
            le=300.0,
            description="Seconds that a unary check-in may wait in its call while a run looks for participants; for so "
            "long it can be drawn.",
        ),
    ] = 20.0
    longest_s: Annotated[
        float,
        Field(
            ge=1.0,
            le=604_800.0,
            description="Seconds from one unary check-in to the next at most, unless `per_s` asks for more: how long a "
            "new run may wait for participants that no other run needs.",
        ),
    ] = 600.0


DEFAULT_CHECK_INS = CheckInSettings()
