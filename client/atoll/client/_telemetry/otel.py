"""Spans made with OpenTelemetry's SDK and exported by OTLP over HTTP; needs the extra ``otel``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import Thread
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from atoll.client._telemetry.tracing import Tracing
from atoll.client.errors import type_name

if TYPE_CHECKING:
    from atoll.client.task import Task

SERVICE = "atoll-client"
CLOSE_S = 3.0
"""Time that the process waits for the collector when it ends."""


class OtelTracing(Tracing):
    """Makes a span for each task and each of its steps."""

    def __init__(self) -> None:
        named = SERVICE_NAME in OTELResourceDetector().detect().attributes
        resource = Resource.create({} if named else {SERVICE_NAME: SERVICE})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("atoll.client")

    @contextlib.contextmanager
    def task(self, task: Task) -> Iterator[None]:
        """See ``Tracing``; the parent is the server's span of this participant."""
        parent = TraceContextTextMapPropagator().extract({"traceparent": task.traceparent})
        facts: dict[str, str | int] = {
            "atoll.run": task.run,
            "atoll.round": task.round,
            "atoll.attempt": task.attempt,
            "atoll.kind": task.kind.value,
        }
        with self._span("task", context=parent, attributes=facts):
            yield

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """See ``Tracing``."""
        with self._span(name):
            yield

    @contextlib.contextmanager
    def _span(self, name: str, **facts: Any) -> Iterator[None]:
        """A span that records the type of an error but not its text, which may quote data."""
        with self._tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False, **facts
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_status(Status(StatusCode.ERROR, type_name(error)))
                raise

    def close(self) -> None:
        """See ``Tracing``."""
        ending = Thread(target=self._provider.shutdown, name="atoll-traces", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
