"""Set up tracing if OpenTelemetry's own environment variables ask for it.

With ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``..._TRACES_ENDPOINT``) set and the extra ``otel`` installed, spans go there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from atoll.client._telemetry.tracing import Tracing
from atoll.processes.otel_environment import traces_wanted
from atoll.text.installing import install_hint

log = logging.getLogger("atoll.client")


def tracing_of(environment: Mapping[str, str] = os.environ) -> Tracing:
    """The tracing that the environment asks for; without the extra ``otel`` it logs a warning and makes no spans."""
    if not traces_wanted(environment):
        return Tracing()
    try:
        from atoll.client._telemetry.otel import OtelTracing  # noqa: PLC0415  # an extra; loads OpenTelemetry
    except ModuleNotFoundError as error:
        log.warning("traces are wanted, but %s is not installed: %s", error.name, install_hint("otel"))
        return Tracing()
    return OtelTracing()
