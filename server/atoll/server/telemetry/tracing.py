"""Decides whether to create traces, by OpenTelemetry's environment variables."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from atoll.processes.otel_environment import traces_wanted
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from atoll.server.telemetry.otel import RoundTracer

log = logging.getLogger(__name__)


def tracer_of(environment: Mapping[str, str] = os.environ) -> RoundTracer | None:
    """The tracer that the environment configures; None if there is none, or OpenTelemetry is not installed."""
    if not traces_wanted(environment):
        return None
    try:
        from atoll.server.telemetry.otel import RoundTracer  # noqa: PLC0415  # loads OpenTelemetry, an extra
    except ModuleNotFoundError as error:
        log.warning("traces are wanted, but %s is not installed: %s", error.name, install_hint("otel"))
        return None
    return RoundTracer()
