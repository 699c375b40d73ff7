"""The port for metrics and health: plain HTTP in separate threads, which answer even if the event loop is busy."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread, Timer
from typing import Any

from atoll.processes.listening import Endable
from atoll.server.errors import ServerError, SetupError

log = logging.getLogger(__name__)

IDLE_S = 5.0
"""Seconds without data after which a connection is closed."""
TOTAL_S = 20.0
"""Maximum seconds of a connection, half of which are for making the page."""
MAX_CONNECTIONS = 8
"""Maximum number of connections; further ones are closed at once."""
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Page:
    """The answer to one request."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


class Endpoint:
    """Serves ``pages`` by path; each is made in a thread on request.

    Raises:
        SetupError: if the port cannot be opened.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        try:
            self._server = _server_class(host)((host, port), _handler(pages))
        except (OSError, OverflowError) as error:
            raise SetupError(
                "server.port",
                f"cannot listen on {host}:{port} for metrics: {error}",
                "choose another with --metrics-port or --metrics-host, or do without: --no-metrics",
            ) from error
        bound: int = self._server.server_address[1]
        self.port = bound
        self._thread = Thread(target=self._server.serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.end()
        self._thread.join()
        self._server.server_close()


class _Server(Endable, ThreadingHTTPServer):
    """An HTTP server of at most ``MAX_CONNECTIONS`` connections at a time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._places = BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started that would free the slot
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        deadline = Timer(TOTAL_S, _cut_off, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().finish_request(request, client_address)
        finally:
            deadline.cancel()
            deadline.join()  # it must not act on a reused descriptor

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address
        log.debug("a connection to the metrics port broke", exc_info=True)


def _cut_off(connection: socket.socket) -> None:
    """End another thread's reads and writes."""
    with contextlib.suppress(OSError):  # the peer closed it first
        connection.shutdown(socket.SHUT_RDWR)


class _ServerV6(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _ServerV6 if ":" in host else _Server


def _handler(pages: Mapping[str, Callable[[], Page]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_S
        server_version = "atoll"
        sys_version = ""

        def do_GET(self) -> None:
            self._send(_page(pages, self.path.partition("?")[0]), with_body=True)

        def do_HEAD(self) -> None:
            self._send(_page(pages, self.path.partition("?")[0]), with_body=False)

        def _send(self, page: Page, *, with_body: bool) -> None:
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            if with_body:
                self.wfile.write(page.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
            log.debug(format, *args)

    return Handler


def _page(pages: Mapping[str, Callable[[], Page]], path: str) -> Page:
    make = pages.get(path)
    if make is None:
        return Page(f"there are: {' '.join(sorted(pages))}\n".encode(), status=HTTPStatus.NOT_FOUND)
    try:
        return make()
    except (ServerError, TimeoutError) as error:
        log.warning("%s cannot be answered: %s", path, error)
        said = str(error) or "timed out"
        return Page(f"{said}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
    except Exception:
        log.exception("unexpected error in %s", path)
        return Page(b"see the server's log\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)
