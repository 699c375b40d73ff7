"""Ends a gateway's streams."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from atoll.server.identity import Peer
from atoll.server.rpc.authentication import Context, certificate_of

T = TypeVar("T")


def end(outbox: asyncio.Queue[T | None]) -> None:
    """End the stream that is sent from this queue; if the queue is full, a message is dropped."""
    if outbox.full():
        outbox.get_nowait()
    outbox.put_nowait(None)


@contextlib.contextmanager
def ended_with_certificate(context: Context, ending: Callable[[], None]) -> Iterator[None]:
    """Call ``ending`` when the certificate of the gateway's connection expires; a new one needs a new connection."""
    remaining_s = Peer.from_pem(certificate_of(context)).not_after - time.time()
    timer = asyncio.get_running_loop().call_later(max(0.0, remaining_s), ending)
    try:
        yield
    finally:
        timer.cancel()
