"""Health and metrics of a standby: it is ready if it serves participants, and not active."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus

from prometheus_client.core import Metric

from atoll.server.config.config import ServerConfig
from atoll.server.process.metrics_pages import ACTIVE, rendered
from atoll.server.process.standby_gateway import StandbyGateway
from atoll.server.telemetry import health
from atoll.server.telemetry.endpoint import Endpoint, Page
from atoll.server.telemetry.gauges import standing_by


class StandbyPages:
    """The pages, on the port that an active server uses for its own; none without a fixed port.

    Attributes:
        sentence: what the server is waiting for; empty before it waits.
        obstacle: why it does not serve participants, until ``serve``.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._endpoint: Endpoint | None = None
        self._gateway: StandbyGateway | None = None
        self.sentence = ""
        self.obstacle = "the active server does not say yet where it is"

    def open(self, sentence: str) -> None:
        """Serve the pages.

        Raises:
            SetupError: if the port cannot be opened.
        """
        self.sentence = sentence
        config = self._config
        port = config.port_after(config.port, 3, config.metrics_port)
        if not config.metrics or port == 0:
            return
        pages: dict[str, Callable[[], Page]] = {
            "/metrics": lambda: rendered(self._metrics()),
            "/healthz": lambda: Page(b"alive\n"),
            "/readyz": self._ready,
            ACTIVE: lambda: Page(self.sentence.encode() + b"\n", status=HTTPStatus.SERVICE_UNAVAILABLE),
        }
        self._endpoint = Endpoint(config.metrics_host, port, pages)

    def serve(self, gateway: StandbyGateway) -> None:
        """Note that participants are now being served."""
        self._gateway = gateway

    def close(self) -> None:
        """Free the port."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()

    def _ready(self) -> Page:
        problem = self.obstacle if self._gateway is None else self._gateway.problem
        if not problem and (shortage := self._config.storage.room(self._config.data).shortage()):
            problem = shortage
        if not problem:
            return health.page_of({})
        return health.page_of({"standby": f"{self.sentence}; participants are not served here: {problem}"})

    def _metrics(self) -> Iterable[Metric]:
        yield standing_by(1)
        if self._gateway is not None:
            yield from self._gateway.collect()
