"""Writes blocks on a background thread, in order and with a bounded number waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_PENDING = 4
"""Maximum number of blocks waiting to be written."""

Block = Mapping[str, npt.NDArray[np.generic]]


class Sink(Protocol):
    """Accepts bytes in order; ``atoll.server.stores.BlobWriter`` is one."""

    def write(self, piece: Buffer, /) -> object:
        """Append bytes."""
        ...


class BackgroundWriter:
    """Appends blocks to several sinks on a thread of its own; use it in a ``with`` statement.

    Holds at most ``MAX_PENDING`` blocks.

    Args:
        sinks: by name, as in ``append``; they are neither closed nor committed here.
    """

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = sinks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="release-writer")
        self._pending: deque[Future[None]] = deque()

    def append(self, block: Block) -> None:
        """Queue the next piece of each sink; its arrays must stay unchanged for ``MAX_PENDING`` more calls.

        Raises:
            Exception: what a sink raised for an earlier block.
        """
        while len(self._pending) >= MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._write, block))

    def finish(self) -> None:
        """Wait for the last block.

        Raises:
            Exception: what a sink raised.
        """
        while self._pending:
            self._pending.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _write(self, block: Block) -> None:
        for name, piece in block.items():
            self._sinks[name].write(piece.data.cast("B"))
