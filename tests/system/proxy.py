"""A network between a client and its server that can be cut and mended."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType

from tests.system.servers import free_ports

_PIECE_BYTES = 1 << 16


class Proxy:
    """Forwards TCP connections on ``address`` to a target, while it is whole; cut, it breaks and refuses them."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._port = free_ports()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Proxy:
        self.mend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    def mend(self) -> None:
        """Take connections (again)."""
        listener = socket.create_server(("127.0.0.1", self._port))
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Break every connection and take no more."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            _close(*pair)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                near, _ = listener.accept()
                self._join(near)

    def _join(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        pair = (near, far)
        with self._lock:
            self._pairs.add(pair)
        for source, sink in (pair, pair[::-1]):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for piece in _pieces(source):
            sink.sendall(piece)
    _close(source, sink)


def _pieces(source: socket.socket) -> Iterator[bytes]:
    while piece := source.recv(_PIECE_BYTES):
        yield piece


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
