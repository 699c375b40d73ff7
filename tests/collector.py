"""A small OTLP collector over HTTP: keeps the spans that are sent to it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.patience import WAIT_S


@dataclass(frozen=True)
class Span:
    """A span as it arrived; ids in hex."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, str]


class Collector:
    """Listens on loopback; ``environment`` is what a process needs to send its spans here soon.

    ``received`` is all that was sent, as it came.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.received = b""
        self._came = threading.Condition()
        keep = self._keep

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                keep(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        port = self._server.server_address[1]
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def until(self, enough: Callable[[list[Span]], bool], timeout_s: float = WAIT_S) -> list[Span]:
        """The spans so far, once they are enough."""
        with self._came:
            assert self._came.wait_for(lambda: enough(self.spans), timeout_s), self.spans
            return list(self.spans)

    def _keep(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces", path
        request = ExportTraceServiceRequest.FromString(body)
        found = []
        for group in request.resource_spans:
            service = next(one.value.string_value for one in group.resource.attributes if one.key == "service.name")
            found += [_span(service, one) for scope in group.scope_spans for one in scope.spans]
        with self._came:
            self.spans += found
            self.received += body
            self._came.notify_all()


def _span(service: str, one: SpanMessage) -> Span:
    return Span(
        service=service,
        name=one.name,
        trace=one.trace_id.hex(),
        id=one.span_id.hex(),
        parent=one.parent_span_id.hex(),
        start_ns=one.start_time_unix_nano,
        end_ns=one.end_time_unix_nano,
        failed=one.status.code == Status.STATUS_CODE_ERROR,
        attributes={item.key: item.value.string_value or str(item.value.int_value) for item in one.attributes},
    )
