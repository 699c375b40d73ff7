"""What passes through one process of the server, counted where it passes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass


def ignore(_: float | str) -> None:
    """For whoever is not interested."""


@dataclass(eq=False, slots=True)
class Meter:
    """Plain numbers: adding to them is all that a chunk costs. Those of transfers are the event loop's.

    Attributes:
        uploaded_bytes: payload bytes received, chunks sent twice included.
        downloaded_bytes: bytes of messages with chunks sent, likewise.
        uploads_open: streams under way; so too ``downloads_open``.
        committed: told of the seconds that making an upload durable took.
        folded: told of the seconds that adding an update to a sum took, in any thread.
        refused: told of the code of each error that a caller gets.
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
        """An upload stream is open within."""
        self.uploads_open += 1
        try:
            yield
        finally:
            self.uploads_open -= 1

    @contextlib.contextmanager
    def download(self) -> Iterator[None]:
        """A download stream is open within."""
        self.downloads_open += 1
        try:
            yield
        finally:
            self.downloads_open -= 1
