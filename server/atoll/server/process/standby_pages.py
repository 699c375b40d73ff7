"""Health and metrics of a server that stands by: alive, and not ready."""

from __future__ import annotations

from collections.abc import Callable

from atoll.server.config.config import ServerConfig
from atoll.server.process.metrics_pages import rendered
from atoll.server.telemetry import health
from atoll.server.telemetry.endpoint import Endpoint, Page
from atoll.server.telemetry.gauges import standing_by


def open_pages(config: ServerConfig, sentence: Callable[[], str]) -> Endpoint | None:
    """Serve the pages on the port that the server at work uses for its own; None if it has no fixed one.

    Args:
        config: names the port.
        sentence: says what the server waits for.

    Raises:
        SetupError: if the port cannot be opened.
    """
    port = config.port_after(config.port, 3, config.metrics_port)
    if not config.metrics or port == 0:
        return None
    pages: dict[str, Callable[[], Page]] = {
        "/metrics": lambda: rendered([standing_by(1)]),
        "/healthz": lambda: Page(b"alive\n"),
        "/readyz": lambda: health.page_of({"standby": sentence()}),
    }
    return Endpoint(config.metrics_host, port, pages)
