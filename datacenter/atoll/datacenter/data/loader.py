"""Prefetch a rank's batches in a thread, and measure how long the trainer waits for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist

from atoll.datacenter.data.batches import Agree, Batch, Batches, State, even_counts
from atoll.datacenter.errors import DataError

DEFAULT_DEPTH, MAX_DEPTH = 2, 32
DEFAULT_TIMEOUT_S = 600.0
CLOSE_S = 10.0


class Loader:
    """One rank's shares of consecutive steps.

    At most ``depth`` shares are read ahead. ``state`` is the position of the last share handed out, so a resumed job
    reads again the shares that were prefetched but not handed out. A context manager: the thread ends with it.

    Args:
        batches: the position to start from; used only by the loader from now on.
        rank: number of the share.
        world: number of shares, as even as possible; ``reshare`` makes them uneven.
        depth: shares to hold ready, from 1 to MAX_DEPTH.
        timeout_s: how long ``next`` waits at most.
        pin: whether batches are in page-locked memory, from which a GPU copies while it computes.
        agree: maximum over all data-parallel ranks; ``state`` calls it on every rank if the source streams.
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
        self._reading = threading.Lock()
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
        """Return this rank's share of the next step.

        Raises:
            DataError: if the source cannot be read, or not in time, or if the loader is closed.
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

    def share_of(self, step: int, rank: int) -> Batch:
        """Read and return another rank's even share of a step."""
        with self._reading:
            return self._batches.step(step).share(rank, len(self._counts))

    def state(self) -> State:
        """Return the position of the next share; the same on every rank. Collective if ``agree`` is given."""
        return self._batches.state(self._agree)

    def load(self, state: Mapping[str, object]) -> None:
        """Continue from a state; discards what was read ahead."""
        with self._changed:
            self._batches.load(state)
            self._start_over()

    def reshare(self, counts: Sequence[int]) -> None:
        """From the next step on, give rank i ``counts[i]`` rows. All ranks must call this at the same step."""
        with self._changed:
            if tuple(counts) != self._counts:
                self._counts = tuple(counts)
                self._start_over()

    def close(self) -> None:
        """End the thread and wait for it; if it still reads after CLOSE_S, it ends with the process."""
        with self._changed:
            self._closed = True
            self._start_over()
        self._thread.join(CLOSE_S)

    def _why_none(self) -> DataError:
        if self._failure is not None:
            return DataError(f"step {self._batches.position}: data cannot be read: {self._failure}")
        if self._closed:
            return DataError("the loader is closed")
        return DataError(
            f"step {self._batches.position}: no data within {self._timeout_s:g} s: check the disk and its mount"
        )

    def _start_over(self) -> None:
        self._ready.clear()
        self._generation += 1
        self._changed.notify_all()

    def _run(self) -> None:
        while (wanted := self._wanted()) is not None:
            generation, number, counts = wanted
            try:
                with self._reading:
                    batch = self._batches.step(number).counted_share(self._rank, counts)
                batch = batch.pin_memory() if self._pin else batch
            except Exception as error:  # noqa: BLE001  # raised by the next call
                self._fail(error)
                return
            with self._changed:
                if generation == self._generation:
                    self._ready.append(batch)
                    self._changed.notify_all()

    def _wanted(self) -> tuple[int, int, tuple[int, ...]] | None:
        """Wait for room and return what to read next; None when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            if self._closed:
                return None
            return self._generation, self._batches.position + len(self._ready), self._counts

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()


def largest_over(group: dist.ProcessGroup, device: torch.device) -> Agree:
    """Return a function that takes each element's maximum over the ranks of a group; collective, on ``device``.

    With it ranks share the bookmarks of streamed text, of which each knows some.
    """
    return partial(_largest, group, device)


def _largest(group: dist.ProcessGroup, device: torch.device, found: torch.Tensor) -> torch.Tensor:
    moved = found.to(device, copy=True)
    dist.all_reduce(moved, dist.ReduceOp.MAX, group=group)
    return moved.cpu()
