"""Servers of the standard library that end at once."""

from __future__ import annotations

import selectors
import socket
from socketserver import TCPServer
from typing import Any


class Endable(TCPServer):
    """To be named before the server's own class: ``serve`` waits for ``end`` as it does for connections.

    ``serve_forever`` of ``socketserver`` looks only twice a second whether it is to end.
    """

    timeout = 0.0  # of ``handle_request``, which is called when there is one

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._end, self._ended = socket.socketpair()
        super().__init__(*args, **kwargs)

    def serve(self) -> None:
        """Serve until ``end``."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self, selectors.EVENT_READ)
            waiting.register(self._ended, selectors.EVENT_READ)
            while all(key.fileobj is self for key, _ in waiting.select()):
                self.handle_request()

    def end(self) -> None:
        """Have ``serve`` return at once; from another thread."""
        self._end.close()

    def server_close(self) -> None:
        """Close the sockets."""
        super().server_close()
        self._end.close()
        self._ended.close()
