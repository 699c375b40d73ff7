"""Counters of the uploads, downloads and check-in streams of one server process."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


def ignore(_: float | str) -> None:
    """Do nothing: the default observer."""


@dataclass(eq=False, slots=True)
class TransferMeter:
    """Plain numbers, so that a chunk costs only an addition. Only the event loop uses it.

    Attributes:
        uploaded_bytes: payload bytes received, including repeated chunks.
        downloaded_bytes: bytes of chunk messages sent, including repeated chunks.
        uploads_open: open upload streams; ``downloads_open`` and ``check_ins_open`` likewise.
        last_upload_at: second of the monotonic clock at which an upload last ended.
        committed: called with the duration in seconds of making an upload durable.
        folded: called with the duration in seconds of adding an update to a sum; from any thread.
        refused: called with the code of every error that is sent to a caller.
    """

    uploaded_bytes: int = 0
    uploaded_chunks: int = 0
    downloaded_bytes: int = 0
    downloaded_chunks: int = 0
    uploads_open: int = 0
    downloads_open: int = 0
    check_ins_open: int = 0
    last_upload_at: float = -math.inf
    committed: Callable[[float], None] = ignore
    folded: Callable[[float], None] = ignore
    refused: Callable[[str], None] = ignore
    _watcher: Callable[[], None] | None = None

    @contextlib.contextmanager
    def upload(self) -> Iterator[None]:
        """Count an open upload stream."""
        self.uploads_open += 1
        try:
            yield
        finally:
            self.uploads_open -= 1
            self.last_upload_at = time.monotonic()
            if self._watcher is not None:
                self._watcher()

    @contextlib.contextmanager
    def watched(self, watcher: Callable[[], None]) -> Iterator[None]:
        """Call the watcher whenever an upload stream ends; there is only one watcher at a time."""
        self._watcher = watcher
        try:
            yield
        finally:
            self._watcher = None

    @contextlib.contextmanager
    def download(self) -> Iterator[None]:
        """Count an open download stream."""
        self.downloads_open += 1
        try:
            yield
        finally:
            self.downloads_open -= 1
