"""A rank's batches, read ahead by a thread, with the time that the trainer had to wait for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from atoll.datacenter.data.batches import Agree, Batch, Batches, State, even_counts
from atoll.datacenter.errors import DataError

DEFAULT_DEPTH, MAX_DEPTH = 2, 32
DEFAULT_TIMEOUT_S = 600.0
CLOSE_S = 10.0


class Loader:
    """One rank's share of step after step.

    Read ahead are at most ``depth`` shares; ``state`` is that of what was handed out, so a resumed job sees what was
    read ahead again. A context manager: the thread ends when it is left.

    Args:
        batches: where to go on from; the loader's alone from now on.
        rank: which share.
        world: of how many, as even as can be. ``reshare`` makes them uneven.
        depth: shares held ready, from 1 to MAX_DEPTH.
        timeout_s: the longest that ``next`` waits.
        pin: whether batches lie in page-locked memory, from which a GPU copies while it computes.
        agree: the largest over all data-parallel ranks; ``state`` calls it on every rank where the source streams.
    """

    def __init__(
        self,
        batches: Batches,
        rank: int,
        world: int,
        *,
        depth: int = DEFAULT_DEPTH,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        pin: bool = False,
        agree: Agree | None = None,
    ) -> None:
        if not 0 <= rank < world or not 1 <= depth <= MAX_DEPTH:
            raise ValueError(f"rank {rank} of {world}, depth {depth}: a depth is from 1 to {MAX_DEPTH}")
        self._batches, self._rank, self._depth, self._timeout_s = batches, rank, depth, timeout_s
        self._pin, self._agree = pin, agree
        self._counts = tuple(even_counts(batches.source.global_batch, world))
        self._changed = threading.Condition()
        self._ready: deque[Batch] = deque()
        self._generation = 0
        self._failure: BaseException | None = None
        self._closed = False
        self.wait_s = 0.0
        """Seconds that ``next`` waited since the loader was made."""
        self._thread = threading.Thread(target=self._run, name="data", daemon=True)
        self._thread.start()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next(self) -> Batch:
        """This rank's share of the next step.

        Raises:
            DataError: if the source cannot be read, or not in time, or the loader is closed.
        """
        started = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failure or self._closed, self._timeout_s)
            self.wait_s += time.perf_counter() - started
            if not self._ready:
                raise self._why_none() from self._failure
            self._batches.next_step()
            self._changed.notify_all()
            return self._ready.popleft()

    def state(self) -> State:
        """Where the next step is that ``next`` gives; the same on every rank. A collective if there is ``agree``."""
        return self._batches.state(self._agree)

    def load(self, state: Mapping[str, object]) -> None:
        """Go on from a state; what was read ahead is thrown away."""
        with self._changed:
            self._batches.load(state)
            self._start_over()

    def reshare(self, counts: Sequence[int]) -> None:
        """From the next step on, rank i gets ``counts[i]`` rows. All ranks have to do this at the same step."""
        with self._changed:
            if tuple(counts) != self._counts:
                self._counts = tuple(counts)
                self._start_over()

    def close(self) -> None:
        """End the thread and wait for it; one that still reads after CLOSE_S ends with the process."""
        with self._changed:
            self._closed = True
            self._start_over()
        self._thread.join(CLOSE_S)

    def _why_none(self) -> DataError:
        if self._failure is not None:
            return DataError(f"step {self._batches.position}: data cannot be read: {self._failure}")
        if self._closed:
            return DataError("the loader is closed")
        return DataError(f"step {self._batches.position}: no data within {self._timeout_s:g} s: is the disk there?")

    def _start_over(self) -> None:
        self._ready.clear()
        self._generation += 1
        self._changed.notify_all()

    def _run(self) -> None:
        while (wanted := self._wanted()) is not None:
            generation, number, counts = wanted
            try:
                batch = self._batches.step(number).counted_share(self._rank, counts)
                batch = batch.pin_memory() if self._pin else batch
            except Exception as error:  # noqa: BLE001  # told to whoever calls next
                self._fail(error)
                return
            with self._changed:
                if generation == self._generation:
                    self._ready.append(batch)
                    self._changed.notify_all()

    def _wanted(self) -> tuple[int, int, tuple[int, ...]] | None:
        """What to read next, when there is room for it; None when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            if self._closed:
                return None
            return self._generation, self._batches.position + len(self._ready), self._counts

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
