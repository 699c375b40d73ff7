"""The console's process: a socket, the web server on it, and links for the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from atoll.console.app import application
from atoll.console.connections import ImpatientProtocol
from atoll.console.guard import OPEN_PATH
from atoll.console.live import Live
from atoll.console.sessions import Access
from atoll.console.site import Site
from atoll.operator.errors import BadInputError

if TYPE_CHECKING:
    from atoll.console.guard import Guard
    from atoll.console.site import Listening
    from atoll.operator import Operator

_BACKLOG = 128
_MAX_CONNECTIONS = 200
_STOP_S = 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Server(uvicorn.Server):
    """A web server that, when interrupted, ends its streams of events and then completes open responses."""

    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal; uvicorn itself would raise the signal again after it has stopped."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        self._live.stop()
        await super().shutdown(sockets)


class Console:
    """A web server on a socket that is already listening.

    Args:
        operator: the connection to the server.
        listening: where it listens.
        listener: the socket.

    Raises:
        BadInputError: if the TLS files cannot be used.
    """

    def __init__(self, operator: Operator, listening: Listening, listener: socket.socket) -> None:
        self._listener = listener
        self._site = Site.of(listening, listener.getsockname()[1])
        self._access, live = Access(), Live()
        self._server = _Server(_config(listening, application(operator, self._site, self._access, live)), live)

    def make_link(self) -> str:
        """Make a one-time link; an earlier link that was not used becomes invalid."""
        return f"{self._site.origin}{OPEN_PATH}{self._access.make_link()}"

    async def serve(self) -> None:
        """Serve until ``stop`` is called, or the process is interrupted."""
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Stop soon; from any thread."""
        self._server.should_exit = True


async def serve(operator: Operator, listening: Listening, show_link: Callable[[str], None]) -> None:
    """Serve the console until the process is interrupted.

    Args:
        operator: the connection to the server.
        listening: where to listen.
        show_link: called with a link at the start, and with another one for each line on a terminal.

    Raises:
        BadInputError: if it cannot listen there, or the TLS files cannot be used.
    """
    with opened(listening) as listener:
        console = Console(operator, listening, listener)
        show_link(console.make_link())
        with _on_enter(lambda: show_link(console.make_link())):
            await console.serve()


@contextlib.contextmanager
def opened(listening: Listening) -> Iterator[socket.socket]:
    """A listening socket.

    Raises:
        BadInputError: if the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in listening.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((listening.host, listening.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            raise BadInputError(
                f"cannot listen on {listening.host}:{listening.port}: {error.strerror or error}",
                "give another --port; 0 picks a free one",
            ) from error
        yield listener


def _config(listening: Listening, app: Guard) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        access_log=False,  # it would contain the one-time links
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http=ImpatientProtocol,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_S,
        ssl_certfile=None if listening.certificate is None else str(listening.certificate),
        ssl_keyfile=None if listening.key is None else str(listening.key),
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError too
        raise BadInputError(
            f"the TLS files {listening.certificate} and {listening.key} cannot be used: {error}",
            "give a certificate chain and its key, both PEM",
        ) from error
    return config


@contextlib.contextmanager
def _on_enter(show: Callable[[], None]) -> Iterator[None]:
    """Call ``show`` for each line on standard input, if that is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        if sys.stdin.readline():
            show()
        else:
            loop.remove_reader(sys.stdin)

    loop.add_reader(sys.stdin, read)
    try:
        yield
    finally:
        loop.remove_reader(sys.stdin)
