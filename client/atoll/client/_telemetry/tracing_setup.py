"""Whether traces are made: OpenTelemetry's own environment variables say so.

With ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``..._TRACES_ENDPOINT``) set and the extra ``otel`` installed, spans go there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from atoll.client._telemetry.tracing import Tracing
from atoll.text.installing import install_hint

log = logging.getLogger("atoll.client")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's variables ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(environment.get(name) for name in ENDPOINTS)


def tracing_of(environment: Mapping[str, str] = os.environ) -> Tracing:
    """The tracing that the environment asks for; without the extra ``otel`` a warning, and no spans."""
    if not is_wanted(environment):
        return Tracing()
    try:
        from atoll.client._telemetry.otel import OtelTracing  # noqa: PLC0415  # an extra; loads OpenTelemetry
    except ModuleNotFoundError as error:
        log.warning("traces are wanted, but %s is not installed: %s", error.name, install_hint("otel"))
        return Tracing()
    return OtelTracing()
