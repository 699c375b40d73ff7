"""An ingest node's sums: committed uploads are folded into one accumulator per open round."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from atoll.server.aggregation import Accumulator, Grid
from atoll.server.ingest.spool import Committed, Spool
from atoll.wire.chunks import ChunkHeader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SumKey:
    """Which sum: one attempt of one round of one run, over a model of ``elements`` elements, on a grid."""

    run: str
    round: int
    attempt: int
    elements: int
    grid: Grid


@dataclass(frozen=True, slots=True)
class FoldItem:
    """One committed update: made by ``participant`` for an attempt of a round (an earlier one if it is carried)."""

    run: str
    round: int
    attempt: int
    participant: str
    digest: str
    weight: int

    @property
    def update_id(self) -> str:
        """Names the update within a run."""
        return f"{self.round}.{self.attempt}/{self.participant}/{self.digest}"


class _Sum:
    """The accumulator of one round and the lock under which it changes."""

    def __init__(self, accumulator: Accumulator) -> None:
        self.accumulator = accumulator
        self.lock = Lock()


class IngestNode:
    """Folds on demand. Thread-safe; every method blocks, so call it from a worker thread.

    Holds one accumulator (8 bytes per element) per round in work, and keeps one spare for the next round.
    """

    def __init__(self, name: str, spool: Spool) -> None:
        self.name = name
        self._spool = spool
        self._sums: dict[SumKey, _Sum] = {}
        self._spare: Accumulator | None = None
        self._lock = Lock()

    def fold(self, key: SumKey, items: Iterable[FoldItem]) -> None:
        """Add those updates that are not in the sum yet.

        Raises:
            NotFoundError, CorruptDataError: if an upload is gone or damaged; the sum holds the others.
            RejectedUpdateError: for a value that the grid does not admit.
        """
        found = self._sum(key)
        with found.lock:
            self._add(found.accumulator, items)

    def partial(self, key: SumKey, items: Sequence[FoldItem]) -> Accumulator:
        """The sum of exactly these updates; what is missing is folded, and too much starts the sum anew.

        Raises:
            NotFoundError, CorruptDataError: if an upload is gone or damaged.
            RejectedUpdateError: for a value that the grid does not admit.
        """
        found = self._sum(key)
        wanted = {item.update_id for item in items}
        with found.lock:
            if not found.accumulator.updates <= wanted:
                log.warning("the partial sum holds updates that do not count; folding anew", extra={"run": key.run})
                found.accumulator.reset(key.grid)
            self._add(found.accumulator, items)
        return found.accumulator

    def write_partial(self, key: SumKey, items: Sequence[FoldItem], path: Path) -> int:
        """Write the sum of exactly these updates to a file; returns their total weight."""
        accumulator = self.partial(key, items)
        accumulator.write_to(path)
        return accumulator.total_weight

    def drop(self, run: str, round_number: int, attempt: int) -> None:
        """Forget the sums of one attempt of a round; the memory is kept for the next one."""
        with self._lock:
            for key in [key for key in self._sums if (key.run, key.round, key.attempt) == (run, round_number, attempt)]:
                self._spare = self._sums.pop(key).accumulator

    def drop_run(self, run: str) -> None:
        """Forget every sum of a run, and the spare memory."""
        with self._lock:
            for key in [key for key in self._sums if key.run == run]:
                del self._sums[key]
            self._spare = None

    def _sum(self, key: SumKey) -> _Sum:
        with self._lock:
            found = self._sums.get(key)
            if found is None:
                found = self._sums[key] = _Sum(self._accumulator(key))
            return found

    def _accumulator(self, key: SumKey) -> Accumulator:
        spare, self._spare = self._spare, None
        if spare is not None and spare.size == key.elements:
            spare.reset(key.grid)
            return spare
        return Accumulator(key.elements, key.grid)

    def _add(self, accumulator: Accumulator, items: Iterable[FoldItem]) -> None:
        for item in items:
            if item.update_id not in accumulator.updates:
                with self._spool.committed(item.run, item.round, item.attempt, item.participant, item.digest) as upload:
                    accumulator.fold(item.update_id, item.weight, _chunks(upload))


def _chunks(upload: Committed) -> Iterator[tuple[ChunkHeader, memoryview]]:
    """Every chunk, checked against its digest: what lay on disk may have changed since it came."""
    for record in upload.records:
        yield record.header, upload.payload(record)
