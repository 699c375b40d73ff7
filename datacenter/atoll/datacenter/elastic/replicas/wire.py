"""A connection between a rank and the coordinator: messages as lines of JSON."""

from __future__ import annotations

import socket
import threading

from atoll.datacenter.elastic.replicas.messages import MAX_BYTES, Message, encoded


class Wire:
    """One end of a connection. One thread receives; any thread may send and shut.

    Args:
        connection: connected; belongs to this object from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._lines = connection, connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            OSError: if the connection is closed.
        """
        with self._sending:
            self._socket.sendall(encoded(message) + b"\n")

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Return the next message, encoded.

        Raises:
            EOFError: at the end of the connection, or if the data is not a message.
            OSError: if the connection broke, or nothing came in time.
        """
        self._socket.settimeout(timeout_s)
        line = self._lines.readline(MAX_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError
        return line

    def shut(self) -> None:
        """End the connection, even while another thread receives: that thread then sees the end, and closes it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # closed already

    def close(self) -> None:
        """Close the connection; for the thread that receives."""
        self._lines.close()
        self._socket.close()
