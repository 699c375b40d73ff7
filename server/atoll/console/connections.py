"""HTTP connections that are closed when no request comes on them, so that idle ones cannot take every place."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 10.0
"""Seconds for the header of a request to arrive; a connection without one is closed after once to twice as long."""


class ImpatientProtocol(H11Protocol):
    """Closes a connection that spends ``PATIENCE_S`` without a request in work.

    uvicorn itself waits without a limit for the first request, and stops waiting for a further one only while no byte
    of it has come.
    """

    _look: asyncio.TimerHandle
    _seen: tuple[bool, object] = (True, None)
    """At the last look: whether the connection was idle, and its newest request."""

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
