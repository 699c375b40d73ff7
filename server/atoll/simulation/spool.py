"""The spool of a simulation: it stores no uploads, only the facts that the server needs about them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from atoll.server.errors import NotFoundError
from atoll.server.ingest.committed import Committed
from atoll.server.ingest.records import Record
from atoll.server.ingest.spool import Spool
from atoll.wire.chunks import ChunkHeader, ElementRange
from atoll.wire.encoding import Encoding

_HEADER = ChunkHeader(ElementRange.run(0, 1), Encoding.FLOAT32, bytes(32))
Upload = tuple[str, int, int, str]
"""Run, round, attempt and participant."""
Forget = Callable[[str, tuple[int, int], Collection[tuple[int, int, str]]], None]
"""Forget a run's updates through an attempt, except those of the given (round, attempt, participant)."""


class VirtualSpool(Spool):
    """Knows the norms of received updates, which private releases need; the runners hold the updates.

    Args:
        root: an empty folder.
        forget: makes the runners forget updates.
    """

    def __init__(self, root: Path, forget: Forget) -> None:
        super().__init__(root)
        self._squares: dict[Upload, tuple[float, ...]] = {}
        self._runners_forget = forget

    def note(self, upload: Upload, squares: tuple[float, ...]) -> None:
        """Record a received update, with the sums of squares of its chunks."""
        self._squares[upload] = squares

    @contextlib.contextmanager
    def committed(
        self, run: str, round_number: int, attempt: int, participant: str, digest: str
    ) -> Iterator[Committed]:
        """See ``Spool``; its records have only their norms."""
        squares = self._squares.get((run, round_number, attempt, participant))
        if squares is None:
            raise NotFoundError("spool.missing", f"no update of {participant} is here: {digest[:16]}")
        records = [Record(_HEADER, "", 0, 0.0, square, b"") for square in squares]
        yield Committed(self.root, records, {})

    def flaw(self, run: str, round_number: int, attempt: int, participant: str, digest: str) -> str:
        """See ``Spool``: an update is complete, or was never received."""
        del digest
        return "" if (run, round_number, attempt, participant) in self._squares else "the update is not here"

    def drop_through(
        self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]
    ) -> list[tuple[int, int]]:
        """See ``Spool``."""
        self._squares = {
            upload: squares
            for upload, squares in self._squares.items()
            if upload[0] != run or upload[1:3] > through or upload[1:] in keep
        }
        self._runners_forget(run, through, keep)
        return []

    def drop_run(self, run: str) -> None:
        """See ``Spool``."""
        self._squares = {upload: squares for upload, squares in self._squares.items() if upload[0] != run}
