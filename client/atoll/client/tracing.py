"""Spans of a participant's work, as part of the trace of its round; nothing at all unless the environment asks for it.

The environment is OpenTelemetry's own: with ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``..._TRACES_ENDPOINT``) set and
the extra ``otel`` installed, spans go there. Their parent travels in the invitation (W3C trace context).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from atoll.wire.installing import install_hint

if TYPE_CHECKING:
    from atoll.client.task import Task

log = logging.getLogger("atoll.client")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Tracing:
    """Makes no spans; what does is ``otel.OtelTracing``."""

    def task(self, task: Task) -> contextlib.AbstractContextManager[None]:
        """The whole of a task is done within, in this thread."""
        del task
        return contextlib.nullcontext()

    def step(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A step of that task is done within: download, evaluate, fit, upload, report."""
        del name
        return contextlib.nullcontext()

    def close(self) -> None:
        """Send what waits; takes a few seconds at most."""


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's variables ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(environment.get(name) for name in ENDPOINTS)


def tracing_of(environment: Mapping[str, str] = os.environ) -> Tracing:
    """What the environment asks for; a wish that cannot be met is logged and ends nothing."""
    if not is_wanted(environment):
        return Tracing()
    try:
        from atoll.client.otel import OtelTracing  # noqa: PLC0415  # loads OpenTelemetry, which most do without
    except ModuleNotFoundError as error:
        log.warning("traces are wanted, but %s is not installed: %s", error.name, install_hint("otel"))
        return Tracing()
    return OtelTracing()
