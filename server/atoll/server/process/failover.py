"""Coordinates a server with others at its database: it stands by and serves participants, then takes its turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Collection

from sqlalchemy import Connection

from atoll.server.backup.make import CA_FOLDER
from atoll.server.config.config import ServerConfig
from atoll.server.errors import ServerError
from atoll.server.identity.authority import AUTHORITY_FILES
from atoll.server.process.heartbeat import Heartbeat
from atoll.server.process.notify import READY, notify
from atoll.server.process.standby_gateway import HANDOVER_S, StandbyGateway
from atoll.server.process.standby_pages import StandbyPages
from atoll.server.stores import Store, blob_place, server_names
from atoll.server.stores.database_clock import warn_of_skew
from atoll.server.stores.server_turns import WorkPlace
from atoll.server.stores.standby import Standby
from atoll.server.telemetry.rounds import RoundFigures
from atoll.wire.loopback import is_loopback

log = logging.getLogger(__name__)

TRY_AGAIN_S = 10.0
"""Seconds between two attempts to serve participants while standing by."""


def name_of(config: ServerConfig) -> str:
    """This server's name among the servers of its database: machine and port, since all advertise the same name."""
    machine = config.host if is_loopback(config.host) else socket.gethostname()
    return f"{machine}:{config.port}"


class Failover:
    """Coordinates one server with the other servers of its database.

    Args:
        config: the server's settings.
        returns: whether the server was active before.

    Attributes:
        standby: waits in ``Store.open``.
        over: set when another server has, or may have, taken over.
    """

    def __init__(self, config: ServerConfig, *, returns: bool) -> None:
        self._config = config
        self.standby = Standby(
            name_of(config), config.storage.takeover_s, self._show_wait, returns=returns, found=self._found
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pages = StandbyPages(config)
        self._place: WorkPlace | None = None
        self._gateway: StandbyGateway | None = None
        self._serving: asyncio.Task[None] | None = None
        self._heartbeat: Heartbeat | None = None
        self._ended = False
        self.over = asyncio.Event()

    @property
    def reason(self) -> str:
        """Why the turn is over."""
        return "" if self._heartbeat is None else self._heartbeat.reason

    @property
    def standbys(self) -> int:
        """Number of other standbys."""
        return 0 if self._heartbeat is None else self._heartbeat.standbys

    def begin(self) -> Standby:
        """Return what ``Store.open`` waits with; meanwhile the running loop serves participants."""
        self._loop = asyncio.get_running_loop()
        return self.standby

    async def take_turn(self, store: Store, rounds: RoundFigures) -> None:
        """End the wait: the server now uses the store, and soon the ports."""
        if self._pages.sentence:
            notify("STATUS=active")
        self._speak(store, rounds)
        await self._stop_serving(HANDOVER_S, "this server takes over")
        self.close_pages()

    def _speak(self, store: Store, rounds: RoundFigures) -> None:
        """Start the heartbeat that keeps the turn, before any slow work."""
        if store.turn is None:
            store.writer.watch(rounds.committed)
            return
        heartbeat = self._heartbeat = Heartbeat(store, self._config.storage.takeover_s, self.over)

        def committed(functions: int, seconds: float, failed: bool) -> None:
            rounds.committed(functions, seconds, failed)
            heartbeat.note_commit(functions, seconds, failed)

        store.writer.watch(committed)

    async def announce(self, store: Store, main_port: int, enrol_port: int) -> None:
        """Publish this server's addresses to standbys."""
        turn, config = store.turn, self._config
        if turn is None:
            return

        def work(connection: Connection) -> None:
            warn_of_skew(connection)
            turn.announce(connection, config.advertised_host, main_port, enrol_port, config.reached_at)

        await store.writer.run(work)

    async def remember_names(self, store: Store, names: Collection[str]) -> Collection[str]:
        """Record host names of a server for later active servers; returns those of all servers of the database."""
        if store.turn is None:
            return names
        return await store.writer.run(lambda connection: server_names.remember(connection, names, now=time.time()))

    async def stop(self) -> None:
        """End the wait or the turn."""
        self.standby.end()
        await self._stop_serving(self._config.drain_s, "the server is stopping")
        self.close_pages()
        if self._heartbeat is not None:
            await self._heartbeat.stop()

    def close_pages(self) -> None:
        """Close the standby's pages, to free the port for those of an active server."""
        self._pages.close()

    def _show_wait(self, sentence: str) -> None:
        """Called in the waiting thread."""
        if not self._pages.sentence:
            self._pages.open(sentence)
            notify(READY)
        self._pages.sentence = sentence
        log.info("standing by: %s", sentence)
        notify(f"STATUS=standing by: {sentence}")

    def _found(self, place: WorkPlace) -> None:
        """Called in the waiting thread: another server is active."""
        if self._loop is None:
            raise RuntimeError("begin first")
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._serve_for, place)

    def _serve_for(self, place: WorkPlace) -> None:
        self._place = place
        if self._gateway is not None:
            self._gateway.go_to(place)
        elif self._serving is None and not self._ended:
            self._serving = asyncio.create_task(self._serve(), name="standby-serving")

    async def _serve(self) -> None:
        """Begin to serve participants, if this server can."""
        if obstacle := obstacle_to_serving(self._config):
            self._pages.obstacle = obstacle
            log.info("participants are not served while standing by: %s", obstacle)
            return
        while self._place is not None:
            gateway = StandbyGateway(self._config, self._place)
            try:
                await gateway.start()
            except ServerError as error:
                self._pages.obstacle = error.logged
                log.warning("participants cannot be served while standing by, trying again: %s", error.logged)
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            self._gateway = gateway
            self._pages.serve(gateway)
            gateway.go_to(self._place)
            return

    async def _stop_serving(self, grace_s: float, reason: str) -> None:
        self._ended = True
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await gateway.stop(grace_s, reason)


def obstacle_to_serving(config: ServerConfig) -> str:
    """The reason why a server may not serve participants while it stands by; empty if it may."""
    if config.insecure:
        return "without TLS no server can distinguish another one from a participant (insecure)"
    if blob_place.find(config.data) is None:
        return "models and accepted updates are files of the active server, not objects in a bucket ([storage] blobs)"
    if not all((config.data / CA_FOLDER / name).exists() for name in AUTHORITY_FILES):
        return f"{config.data} lacks the certificate authority; create the directory again with `atoll server standby`"
    return ""
