"""Closes idle HTTP connections, so that they cannot use up the maximum number of connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 10.0
"""Seconds for the header of a request to arrive; a connection without one is closed after once to twice as long."""


class ImpatientProtocol(H11Protocol):
    """Closes a connection that has no request in progress for ``PATIENCE_S``.

    uvicorn itself waits for the first request without a limit. It limits the wait for a later request only until the
    first byte of that request has arrived.
    """

    _look: asyncio.TimerHandle
    _seen: tuple[bool, object] = (True, None)
    """At the last check: whether the connection was idle, and its newest request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        self._look = self.loop.call_later(PATIENCE_S, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._look.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self) -> None:
        newest: Any = self.cycle  # None before the first request
        idle = newest is None or newest.response_complete
        was_idle, before = self._seen
        if idle and was_idle and newest is before:
            self.transport.close()
            return
        self._seen = (idle, newest)
        self._look = self.loop.call_later(PATIENCE_S, self._close_if_idle)
