"""The sums of an ingest node: committed uploads are folded into one accumulator per open round."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from atoll.processes.heap import give_back
from atoll.server.aggregation import Accumulator, Grid
from atoll.server.disk.space import storage_error
from atoll.server.ingest.committed import Committed
from atoll.server.ingest.partial_file import write_partial
from atoll.server.ingest.records import norm_of
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.transfer_meter import ignore
from atoll.wire.chunks import ChunkHeader

log = logging.getLogger(__name__)

MAX_SPARE_FACTOR = 2
"""Maximum size of spare memory that is reused, as a multiple of a sum: fragments differ slightly in size."""
Chunk = tuple[ChunkHeader, memoryview]


@dataclass(frozen=True, slots=True)
class SumKey:
    """Identifies a sum: run, round and attempt, the elements [first, first + elements), and the grid."""

    run: str
    round: int
    attempt: int
    elements: int
    grid: Grid
    first: int = 0


@dataclass(frozen=True, slots=True)
class FoldItem:
    """One committed update, made by ``participant`` for an attempt at a round (an earlier one if it is carried)."""

    run: str
    round: int
    attempt: int
    participant: str
    digest: str
    weight: int

    @property
    def update_id(self) -> str:
        """The id of the update within a run."""
        return f"{self.round}.{self.attempt}/{self.participant}/{self.digest}"


class _Sum:
    """The sum of one round. ``lock`` guards its accumulator, created on first use, and the flag that it was dropped."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.accumulator: Accumulator | None = None
        self.dropped = False


class IngestNode:
    """Folds on demand. Thread-safe. Every method blocks, so call it from a worker thread.

    Holds one accumulator (8 bytes per element) per open round, and one spare for the next round.

    Args:
        name: recorded with each update that this node receives.
        spool: the uploads.
        folded: called with the duration in seconds of adding each update.

    Attributes:
        steps: number of chunks folded and blocks of sums written; concurrent threads may lose some counts.
    """

    def __init__(self, name: str, spool: Spool, folded: Callable[[float], None] = ignore) -> None:
        self.name = name
        self._spool = spool
        self._folded = folded
        self._sums: dict[SumKey, _Sum] = {}
        self._spare: Accumulator | None = None
        self._lock = Lock()
        self.steps = 0

    def fold(self, key: SumKey, items: Iterable[FoldItem]) -> None:
        """Add the updates that are not yet in the sum.

        Raises:
            NotFoundError, CorruptDataError: if an upload is missing or damaged; the sum then contains the others.
            RejectedUpdateError: for a value that the grid does not admit.
        """
        with self._locked(key) as accumulator:
            self._add(accumulator, items)

    def partial(self, key: SumKey, items: Sequence[FoldItem]) -> Accumulator:
        """The sum of exactly these updates: folds missing ones, and starts over if it contains others.

        The caller reads the sum without a lock, so it must make no other request about this sum until it is done.

        Raises:
            NotFoundError, CorruptDataError: if an upload is missing or damaged.
            RejectedUpdateError: for a value that the grid does not admit.
        """
        with self._locked(key) as accumulator:
            self._make_exact(accumulator, key, items)
            return accumulator

    def write_partial(self, key: SumKey, items: Sequence[FoldItem], path: Path) -> int:
        """Write the sum of exactly these updates to a file; returns their total weight.

        Raises:
            StorageError: if the file cannot be written. Other errors as for ``partial``.
        """
        with self._locked(key) as accumulator:
            self._make_exact(accumulator, key, items)
            try:
                write_partial(path, accumulator, self._step)
            except OSError as error:
                raise storage_error("storage.partial", "a partial sum cannot be written", error, where=path) from error
            return accumulator.total_weight

    def norms(self, items: Iterable[FoldItem]) -> list[float]:
        """The L2 norms of these updates, as measured on arrival.

        Raises:
            NotFoundError, CorruptDataError: if an upload is missing or damaged.
        """
        return [self._norm(item) for item in items]

    def drop(self, run: str, round_number: int, attempt: int) -> None:
        """Drop a run's sums up to this attempt; one accumulator's memory is kept for the next round."""
        self._drop(
            key for key in self._keys() if key.run == run and (key.round, key.attempt) <= (round_number, attempt)
        )

    def drop_run(self, run: str) -> None:
        """Drop every sum of a run; free the spare memory and heap memory left by chunks."""
        self._drop(key for key in self._keys() if key.run == run)
        with self._lock:
            self._spare = None
        give_back()

    def _keys(self) -> list[SumKey]:
        with self._lock:
            return list(self._sums)

    def _drop(self, keys: Iterable[SumKey]) -> None:
        """Wait for folds into the dropped sums to end before their memory is reused."""
        for key in keys:
            with self._lock:
                found = self._sums.pop(key, None)
            if found is None:
                continue
            with found.lock:
                found.dropped = True
                freed, found.accumulator = found.accumulator, None
            with self._lock:
                self._spare = freed or self._spare

    @contextlib.contextmanager
    def _locked(self, key: SumKey) -> Iterator[Accumulator]:
        """The sum's accumulator, for one thread at a time."""
        while True:
            with self._lock:
                found = self._sums.setdefault(key, _Sum())
            with found.lock:
                if found.dropped:
                    continue
                if found.accumulator is None:
                    found.accumulator = self._new_accumulator(key)
                yield found.accumulator
                return

    def _new_accumulator(self, key: SumKey) -> Accumulator:
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None and key.elements <= spare.capacity <= MAX_SPARE_FACTOR * key.elements:
            spare.reset(key.grid, key.first, key.elements)
            return spare
        del spare  # before the new one is created, so that there are never two
        return Accumulator(key.elements, key.grid, key.first)

    def _make_exact(self, accumulator: Accumulator, key: SumKey, items: Sequence[FoldItem]) -> None:
        if not accumulator.updates <= {item.update_id for item in items}:
            log.warning("the partial sum holds updates that do not count; folding again", extra={"run": key.run})
            accumulator.reset(key.grid, key.first)
        self._add(accumulator, items)

    def _add(self, accumulator: Accumulator, items: Iterable[FoldItem]) -> None:
        known = accumulator.updates
        for item in items:
            if item.update_id not in known:
                began = time.monotonic()
                with self._committed(item) as upload:
                    norm = norm_of(upload.records) if accumulator.grid.clip else 0.0
                    accumulator.fold(item.update_id, item.weight, self._chunks(upload), norm)
                self._folded(time.monotonic() - began)

    def _norm(self, item: FoldItem) -> float:
        with self._committed(item) as upload:
            return norm_of(upload.records)

    def _committed(self, item: FoldItem) -> contextlib.AbstractContextManager[Committed]:
        return self._spool.committed(item.run, item.round, item.attempt, item.participant, item.digest)

    def _chunks(self, upload: Committed) -> Iterator[Chunk]:
        """Yield every chunk after comparing it with its checksum, since it may have changed on disk."""
        for record in upload.records:
            yield record.header, upload.payload(record)
            self._step()

    def _step(self) -> None:
        self.steps += 1
