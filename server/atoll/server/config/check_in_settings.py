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
            description="Check-ins per second that the server schedules. It admits up to twice as many, and gives the "
            "rest a later time. A phone's check-in costs a TLS handshake.",
        ),
    ] = 250.0
    period_s: Annotated[
        float,
        Field(
            ge=1.0,
            le=86_400.0,
            description="Minimum seconds from one unary check-in of a participant to the next. If participants are "
            "few, all check in together, once per period.",
        ),
    ] = 60.0
    hold_s: Annotated[
        float,
        Field(
            ge=0.0,
            le=300.0,
            description="Maximum seconds that a unary check-in waits in its call while a run looks for participants; "
            "during that time the participant can be drawn.",
        ),
    ] = 20.0
    longest_s: Annotated[
        float,
        Field(
            ge=1.0,
            le=604_800.0,
            description="Maximum seconds from one unary check-in to the next, unless `per_s` requires more. A new run "
            "may wait this long for participants that no other run needs.",
        ),
    ] = 600.0


DEFAULT_CHECK_INS = CheckInSettings()
