"""Replicas of uneven speed: give each a share of the global batch that it can process in the same time.

The gradient stays the exact mean of the global batch: each loss is divided by the tokens of the whole batch, gradients
are summed, and only a rank's last micro-batch is followed by synchronisation (Li et al. 2020, section 3.2.4), so ranks
may have different numbers of micro-batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

EVERY_STEPS = 20
"""Steps between measurements of the speeds."""
_NEW = 0.5
"""Weight of the newest measurement; earlier ones share the rest."""


def shares(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Divide a total in proportion to speeds by the method of largest remainders; each share is at least 1.

    Args:
        total: sum of the shares.
        speeds: speeds of the ranks, above 0 and finite.

    Raises:
        ValueError: if the total is less than the number of ranks, or a speed is not a positive number.
    """
    if total < len(speeds) or not all(0 < speed < float("inf") for speed in speeds):
        raise ValueError(f"{total} sequences for ranks of speeds {list(speeds)}")
    rest = total - len(speeds)  # each rank gets one first
    fastest = max(speeds)
    relative = [speed / fastest for speed in speeds]
    sought = [max(0.0, total * speed / sum(relative) - 1) for speed in relative]
    exact = [rest * want / sum(sought) if rest else 0.0 for want in sought]
    dealt = [int(want) for want in exact]
    by_remainder = sorted(range(len(speeds)), key=lambda rank: (dealt[rank] - exact[rank], rank))
    for rank in by_remainder[: rest - sum(dealt)]:
        dealt[rank] += 1
    return tuple(1 + one for one in dealt)


class Stopwatch:
    """Measures the seconds that this rank computes, in forward passes only: a backward pass waits for the slowest rank.

    Args:
        device: device of the passes; a GPU is timed by its own events, read in ``take``.
        clock: returns seconds; for tests.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._cuda, self._clock = device.type == "cuda", clock
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the enclosed work."""
        if self._cuda:
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch leaves it untyped
            begun.record()
            yield
            ended.record()
            self._events.append((begun, ended))
            return
        started = self._clock()
        yield
        self._seconds += self._clock() - started

    def take(self) -> float:
        """Return the seconds measured since the last call."""
        for begun, ended in self._events:
            ended.synchronize()
            self._seconds += begun.elapsed_time(ended) / 1e3
        seconds, self._seconds = self._seconds, 0.0
        self._events.clear()
        return seconds


class Balance:
    """Decides each rank's number of sequences; the same on every rank, as all decide from the same numbers.

    Attributes:
        counts: sequences of each rank; even until speeds are known.

    Args:
        total: sequences of the global batch.
        group: process group of the replicas.
        watch: stopwatch of this rank.
        every_steps: steps between measurements.
    """

    def __init__(self, total: int, group: dist.ProcessGroup, watch: Stopwatch, every_steps: int = EVERY_STEPS) -> None:
        self._total, self._group, self._watch, self._every = total, group, watch, every_steps
        self._pace: list[float] | None = None
        self._steps = 0
        self.counts = shares(total, [1.0] * group.size())

    def after_step(self, device: torch.device) -> tuple[int, ...] | None:
        """Count a step. Collective every ``every_steps`` steps.

        Returns:
            Sequences of each rank from the next step on; None if they do not change.
        """
        self._steps += 1
        if self._steps < self._every:
            return None
        sequences = self._steps * self.counts[self._group.rank()]
        self._steps = 0
        mine = torch.tensor([self._watch.take() / sequences], dtype=torch.float64, device=device)
        gathered = [torch.empty_like(mine) for _ in range(self._group.size())]
        dist.all_gather(gathered, mine, group=self._group)
        self._learn([float(one) for one in gathered])
        return self._decide()

    def _learn(self, seconds: list[float]) -> None:
        """Smooth seconds per sequence; a rank that measured nothing keeps its earlier value."""
        if self._pace is None:
            known = [one for one in seconds if one > 0]
            self._pace = [one if one > 0 else max(known, default=1.0) for one in seconds]
            return
        self._pace = [
            old + _NEW * (new - old) if new > 0 else old for old, new in zip(self._pace, seconds, strict=True)
        ]

    def _decide(self) -> tuple[int, ...] | None:
        if self._pace is None:
            return None
        counts = shares(self._total, [1.0 / pace for pace in self._pace])
        if counts == self.counts:
            return None
        self.counts = counts
        return counts
