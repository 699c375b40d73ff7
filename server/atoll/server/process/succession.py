"""One of several servers at a database: stands by, has its turn, and sees it end."""

from __future__ import annotations

import asyncio
import logging

from atoll.server.config.config import ServerConfig
from atoll.server.process.heartbeat import Heartbeat
from atoll.server.process.notify import READY, notify
from atoll.server.process.standby_pages import open_pages
from atoll.server.stores import Store
from atoll.server.stores.standby import Standby
from atoll.server.telemetry.endpoint import Endpoint
from atoll.server.telemetry.rounds import RoundFigures

log = logging.getLogger(__name__)


class Succession:
    """The place of one server among those of a database.

    Args:
        config: of the server.
        returns: whether it was at work before.

    Attributes:
        standby: waits in ``Store.open``.
        over: set when another server has taken over, or may have.
    """

    def __init__(self, config: ServerConfig, *, returns: bool) -> None:
        self._config = config
        name = f"{config.advertised_host}:{config.port}"
        self.standby = Standby(name, config.storage.takeover_s, self._told, returns=returns)
        self._sentence = ""
        self._pages: Endpoint | None = None
        self._heartbeat: Heartbeat | None = None
        self.over = asyncio.Event()

    @property
    def reason(self) -> str:
        """Why the turn is over."""
        return "" if self._heartbeat is None else self._heartbeat.reason

    @property
    def standbys(self) -> int:
        """Number of other servers that stand by."""
        return 0 if self._heartbeat is None else self._heartbeat.standbys

    def begin(self, store: Store, rounds: RoundFigures) -> None:
        """The wait is over: the server uses the store from now on."""
        self.close_pages()
        if self._sentence:
            notify("STATUS=at work")
        if store.turn is None:
            store.writer.watch(rounds.committed)
            return
        heartbeat = self._heartbeat = Heartbeat(store, self._config.storage.takeover_s, self.over)

        def committed(functions: int, seconds: float, failed: bool) -> None:
            rounds.committed(functions, seconds, failed)
            heartbeat.note_commit(functions, seconds, failed)

        store.writer.watch(committed)

    async def stop(self) -> None:
        """End wait and turn."""
        self.standby.end()
        self.close_pages()
        if self._heartbeat is not None:
            await self._heartbeat.stop()

    def close_pages(self) -> None:
        """Free the port for the pages of a server at work."""
        pages, self._pages = self._pages, None
        if pages is not None:
            pages.close()

    def _told(self, sentence: str) -> None:
        """Called in the thread that waits."""
        if self._pages is None:
            self._pages = open_pages(self._config, lambda: self._sentence)
            notify(READY)
        self._sentence = sentence
        log.info("standing by: %s", sentence)
        notify(f"STATUS=standing by: {sentence}")
