"""Counters of the uploads and downloads of one server process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass


def ignore(_: float | str) -> None:
    """Do nothing: the default observer."""


@dataclass(eq=False, slots=True)
class TransferMeter:
    """Plain numbers, so that a chunk costs an addition only. Used from the event loop.

    Attributes:
        uploaded_bytes: payload bytes received, repeated chunks included.
        downloaded_bytes: bytes of chunk messages sent, repeated chunks included.
        uploads_open: open upload streams; ``downloads_open`` likewise.
        committed: called with the seconds that making an upload durable took.
        folded: called with the seconds that adding an update to a sum took; from any thread.
        refused: called with the code of each error that a caller gets.
    """

    uploaded_bytes: int = 0
    uploaded_chunks: int = 0
    downloaded_bytes: int = 0
    downloaded_chunks: int = 0
    uploads_open: int = 0
    downloads_open: int = 0
    committed: Callable[[float], None] = ignore
    folded: Callable[[float], None] = ignore
    refused: Callable[[str], None] = ignore

    @contextlib.contextmanager
    def upload(self) -> Iterator[None]:
        """Count an open upload stream."""
        self.uploads_open += 1
        try:
            yield
        finally:
            self.uploads_open -= 1

    @contextlib.contextmanager
    def download(self) -> Iterator[None]:
        """Count an open download stream."""
        self.downloads_open += 1
        try:
            yield
        finally:
            self.downloads_open -= 1
