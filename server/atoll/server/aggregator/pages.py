"""Metrics and health of an aggregator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from atoll.server.gateway.site.link import Link
from atoll.server.telemetry import health
from atoll.server.telemetry.endpoint import Endpoint, Page
from atoll.server.telemetry.node import NodeFigures

ALIVE_S = 5.0


class Traffic:
    """Traffic between the aggregator and the server: a collector of Prometheus' client.

    Attributes:
        partial_bytes: payload bytes of partial sums sent.
        model_bytes: bytes of models fetched.
    """

    def __init__(self) -> None:
        self.partial_bytes = 0
        self.model_bytes = 0
        self.link: Link | None = None
        self.participants: Callable[[], int] = lambda: 0

    def sent(self, size: int) -> None:
        """Count payload bytes of a partial sum that were sent."""
        self.partial_bytes += size

    def fetched(self, size: int) -> None:
        """Count the bytes of a model that was fetched."""
        self.model_bytes += size

    def collect(self) -> Iterable[Metric]:
        """See ``prometheus_client``'s ``Collector``."""
        yield CounterMetricFamily(
            "atoll_aggregator_partial_bytes", "Payload bytes of partial sums sent to the server.", self.partial_bytes
        )
        yield CounterMetricFamily(
            "atoll_aggregator_model_bytes", "Bytes of models fetched from the server.", self.model_bytes
        )
        yield GaugeMetricFamily(
            "atoll_aggregator_link_up", "Whether the server is connected.", int(self.link is not None and self.link.up)
        )
        yield CounterMetricFamily(
            "atoll_aggregator_links", "Connections made to the server.", self.link.connected if self.link else 0
        )
        yield GaugeMetricFamily(
            "atoll_aggregator_participants", "Participants connected to the aggregator.", self.participants()
        )


def open_pages(host: str, port: int, figures: NodeFigures, link: Link, shortage: Callable[[], str]) -> Endpoint:
    """Serve ``/metrics``, ``/healthz`` and ``/readyz``; the running event loop answers whether it is alive.

    Raises:
        SetupError: if the port cannot be opened.
    """
    loop = asyncio.get_running_loop()

    def healthz() -> Page:
        try:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(ALIVE_S)
        except TimeoutError:
            return Page(b"the event loop does not answer\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Page(b"alive\n")

    def readyz() -> Page:
        problems = {} if link.up else {"server": "there is no connection to the server"}
        if short := shortage():
            problems["disk"] = short
        return health.page_of(problems)

    pages: dict[str, Callable[[], Page]] = {
        "/metrics": lambda: Page(figures.exposition(), CONTENT_TYPE_LATEST),
        "/healthz": healthz,
        "/readyz": readyz,
    }
    return Endpoint(host, port, pages)
