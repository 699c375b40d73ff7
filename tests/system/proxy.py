"""A network between clients and a server that can be cut, stalled, dark, slow, or have random faults from a seed."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import psutil

from tests.ports import free_ports

_PIECE_BYTES = 1 << 14
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER for 0 s: closing sends RST instead of FIN."""


@dataclass(frozen=True)
class Weather:
    """Faults of connections. Each connection draws its own from the seed, so connections can overtake each other.

    Attributes:
        seed: with the number of the connection, decides everything.
        delay_s: maximum seconds that a piece of at most 16 KiB is held back, in each direction.
        stall_share: share of the pieces that are held back for ``stall_s`` instead.
        stall_s: seconds of a stall.
        reset_after_bytes: maximum number of bytes, in both directions, after which a connection is reset; 0 for never.
        bytes_per_s: rate of each connection in each direction; 0 for unlimited.
    """

    seed: int = 0
    delay_s: float = 0.0
    stall_share: float = 0.0
    stall_s: float = 0.0
    reset_after_bytes: int = 0
    bytes_per_s: float = 0.0


class Link:
    """One connection through the proxy: two sockets and their faults."""

    def __init__(self, near: socket.socket, far: socket.socket, weather: Weather, number: int) -> None:
        self.ends = (near, far)
        self.weather = weather
        self.flowing = threading.Event()
        self.flowing.set()
        self._random = random.Random(f"{weather.seed} {number}")
        self._lock = threading.Lock()
        self._left = self._random.randint(1, weather.reset_after_bytes) if weather.reset_after_bytes else None

    def befall(self, size: int, waiting: threading.Event) -> bool:
        """Hold a piece back as the weather says (``waiting``: until it is set); False if the connection is reset."""
        weather = self.weather
        with self._lock:
            stalled = self._random.random() < weather.stall_share
            hold_s = weather.stall_s if stalled else self._random.uniform(0.0, weather.delay_s)
            if self._left is not None:
                self._left -= size
        if weather.bytes_per_s:
            hold_s += size / weather.bytes_per_s
        if hold_s:
            waiting.wait(hold_s)
        return self._left is None or self._left > 0

    def reset(self) -> None:
        """Break the connection like a crashed router."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.close()

    def close(self) -> None:
        """End it in both directions."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Forwards TCP connections on ``address`` to a target, while it is whole; cut, it breaks and refuses them.

    Args:
        target: host:port, or ``unix:PATH``.
        weather: faults of connections.
        host: address to listen on.
        port: of that address; default: a free one.
    """

    def __init__(
        self, target: str, weather: Weather | None = None, *, host: str = "127.0.0.1", port: int | None = None
    ) -> None:
        self._target = target
        self._weather = weather or Weather()
        self._host = host
        self._port = free_ports() if port is None else port
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._links: set[Link] = set()
        self._is_dark: Callable[[Link], bool] = _not_dark
        self._ended = threading.Event()
        self.connections = 0
        self.resets = 0

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    def __enter__(self) -> Proxy:
        self.mend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.lighten()
        self.cut()

    def mend(self) -> None:
        """Accept connections (again)."""
        listener = socket.create_server((self._host, self._port))
        with self._lock:
            self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Break every connection and accept no more."""
        with self._lock:
            listener, self._listener = self._listener, None
            links, self._links = self._links, set()
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for link in links:
            link.close()
            link.flowing.set()

    def turn_to(self, target: str) -> None:
        """Break every connection, and forward new ones elsewhere, as a balancer does when a health check fails."""
        self.cut()
        self._target = target
        self.mend()

    def darken(self, process: int | None = None) -> None:
        """Drop all bytes, and do not pass on ends of connections, so that each side sees silence.

        Args:
            process: only connections of this process; None: all.
        """
        self._shade((lambda _: True) if process is None else partial(_is_of, process))

    def lighten(self) -> None:
        """Forward the bytes that were held back."""
        self._shade(_not_dark)

    def blow(self, weather: Weather) -> None:
        """Change the faults of present and later connections."""
        with self._lock:
            self._weather = weather
            for link in self._links:
                link.weather = weather

    def _shade(self, is_dark: Callable[[Link], bool]) -> None:
        with self._lock:
            self._is_dark = is_dark
            for link in self._links:
                _set(link.flowing, not is_dark(link))

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                near, _ = listener.accept()
                self._join(near, listener)

    def _join(self, near: socket.socket, listener: socket.socket) -> None:
        try:
            far = _connected(self._target)
        except OSError:
            near.close()
            return
        with self._lock:
            if self._listener is not listener:  # cut meanwhile
                near.close()
                far.close()
                return
            self.connections += 1
            link = Link(near, far, self._weather, self.connections)
            _set(link.flowing, not self._is_dark(link))
            self._links.add(link)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(link, source, sink), daemon=True).start()

    def _pump(self, link: Link, source: socket.socket, sink: socket.socket) -> None:
        whole = True
        with contextlib.suppress(OSError):
            for piece in _pieces(source):
                whole = link.befall(len(piece), self._ended)
                link.flowing.wait()
                if not whole:
                    break
                sink.sendall(piece)
        link.flowing.wait()
        with self._lock:
            self.resets += not whole
            self._links.discard(link)
        if whole:
            link.close()
        else:
            link.reset()


def _not_dark(_: Link) -> bool:
    return False


def _is_of(process: int, link: Link) -> bool:
    """Whether a process has made a connection; a closed one is of none."""
    with contextlib.suppress(OSError, psutil.Error):
        port = link.ends[0].getpeername()[1]
        return any(one.laddr.port == port for one in psutil.Process(process).net_connections("tcp"))
    return False


def _set(event: threading.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()


def _connected(target: str) -> socket.socket:
    if target.startswith("unix:"):
        far = socket.socket(socket.AF_UNIX)
        far.connect(target.removeprefix("unix:"))
        return far
    host, _, port = target.rpartition(":")
    return socket.create_connection((host, int(port)))


def _pieces(source: socket.socket) -> Iterator[bytes]:
    while piece := source.recv(_PIECE_BYTES):
        yield piece
