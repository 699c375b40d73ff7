"""Standard-library servers that stop without delay."""

from __future__ import annotations

import selectors
import socket
from socketserver import TCPServer
from typing import Any


class Endable(TCPServer):
    """A mixin, listed before the server's class: ``serve`` returns as soon as ``end`` is called.

    The ``serve_forever`` of ``socketserver`` checks only twice a second whether to stop.
    """

    timeout = 0.0  # for ``handle_request``, which is called once a request has arrived

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
        """Make ``serve`` return at once; call it from another thread."""
        self._end.close()

    def server_close(self) -> None:
        """Close the sockets."""
        super().server_close()
        self._end.close()
        self._ended.close()
