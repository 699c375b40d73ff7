"""OpenTelemetry's environment variables, read before a server or a client loads OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def traces_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the variables name an endpoint for traces and none disables tracing."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(environment.get(name) for name in _ENDPOINTS)
