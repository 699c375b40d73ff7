"""Server-sent events that tell a page that its content has changed; the page then fetches itself again.

A stream ends with ``ended``, or with ``away`` if the page should reconnect after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, StreamingResponse

from atoll.operator.errors import OperatorError, UnreachableError

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

PACE_S = 2.0
"""Minimum seconds between two events of a page, and between two changes of a run that the server sends. Each event
costs the server two calls, and a fast run changes twenty times a second."""
BEAT_S = 15.0
"""Seconds after which a silent stream sends a comment, which shows whether the browser is still there."""
MAX_STREAMS = 32
"""Maximum number of open streams; a stream that follows a run holds a call to the server open."""


class _Stream:
    """The next event for one page: only the newest of the changes since the last event."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.text = ""
        self.ended: tuple[str, str] | None = None
        self._before_end = False

    async def take(self, changes: AsyncIterator[str]) -> None:
        """Keep the newest change until the changes end."""
        try:
            async for text in changes:
                self.text = text
                self._before_end = True
                self.changed.set()
            self.end("over")
        except UnreachableError as error:
            self.end(error.message, "away")
        except OperatorError as error:
            self.end(f"failed: {error.message}")
        except Exception as error:
            self.end(f"failed: {type(error).__name__}")
            raise

    def end(self, why: str, event: str = "ended") -> None:
        """End the stream after this last event."""
        self.ended = event, why
        self.changed.set()

    def take_events(self) -> list[bytes]:
        """Take the events to send now."""
        self.changed.clear()
        found = [_event("changed", self.text)] if self._before_end else []
        self._before_end = False
        return found if self.ended is None else [*found, _event(*self.ended)]


class _Events(StreamingResponse):
    """A stream of events that calls ``over`` at its end, even if the browser leaves before the first event."""

    def __init__(self, events: AsyncIterator[bytes], over: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


class Live:
    """The open streams of events."""

    def __init__(self, *, pace_s: float = PACE_S, beat_s: float = BEAT_S, max_streams: int = MAX_STREAMS) -> None:
        self._pace_s = pace_s
        self._beat_s = beat_s
        self._max_streams = max_streams
        self._open: set[_Stream] = set()

    def answer(self, changes: AsyncIterator[str], alive: Callable[[], bool]) -> Response:
        """Stream the changes to a browser for as long as its session is ``alive``; refuse it beyond the maximum."""
        if len(self._open) >= self._max_streams:
            return PlainTextResponse(
                f"at most {self._max_streams} pages can be followed at the same time; close some of them.\n", 503
            )
        stream = _Stream()
        self._open.add(stream)  # before the first event: several pages may ask at the same time
        return _Events(self._events(stream, changes, alive), lambda: self._open.discard(stream))

    def stop(self) -> None:
        """End every stream, because the console stops."""
        for stream in self._open:
            stream.end("stopped")

    async def _events(
        self, stream: _Stream, changes: AsyncIterator[str], alive: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        task = asyncio.create_task(stream.take(changes))
        try:
            yield b": live\n\n"
            while stream.ended is None and alive():
                if await _is_set(stream.changed, self._beat_s):
                    for event in stream.take_events():
                        yield event
                    await asyncio.sleep(self._pace_s)
                else:
                    yield b": beat\n\n"
            for event in stream.take_events() if stream.changed.is_set() else ():
                yield event
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def polled(ask: Callable[[], tuple[object, str]], interval_s: float) -> AsyncIterator[str]:
    """Poll a list and yield a sentence for each change; the server streams no changes of lists.

    Polling continues while the server is unreachable. Losing it and reaching it again are also changes.

    Args:
        ask: returns the value to compare and a sentence about it; called in a thread.
        interval_s: seconds between two calls of ``ask``.
    """
    known: object = None
    while True:
        try:
            found, text = await run_in_threadpool(ask)
        except UnreachableError as error:
            found, text = UnreachableError, error.message
        if found != known:
            known = found
            yield text
        await asyncio.sleep(interval_s)


async def _is_set(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False


def _event(name: str, text: str) -> bytes:
    return f"event: {name}\ndata: {json.dumps(text)}\n\n".encode()
