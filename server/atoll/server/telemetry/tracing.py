"""Whether traces are wanted: OpenTelemetry's own environment variables say so."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from atoll.server.telemetry.otel import RoundTracer

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether there is an endpoint to send traces to, and nothing forbids it."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(environment.get(name) for name in ENDPOINTS)


def tracer_of(environment: Mapping[str, str] = os.environ) -> RoundTracer | None:
    """The tracer that the environment asks for; None if it asks for none, or OpenTelemetry is not installed."""
    if not is_wanted(environment):
        return None
    try:
        from atoll.server.telemetry.otel import RoundTracer  # noqa: PLC0415  # most do without it
    except ModuleNotFoundError as error:
        log.warning("traces are wanted, but %s is not installed: %s", error.name, install_hint("otel"))
        return None
    return RoundTracer()
