"""Ingest workers: processes that share a port to receive updates, each with a partial sum of its own."""

from __future__ import annotations

from atoll.server.daemon.config import ServerConfig
from atoll.server.daemon.services import Services
from atoll.server.ingest.desk import Desk


class WorkerPool:
    def __init__(self, config: ServerConfig, services: Services, desk: Desk, main_port: int) -> None:
        self._config = config

    async def start(self) -> str:
        return ""

    async def stop(self) -> None:
        pass
