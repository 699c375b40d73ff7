"""Replicas of uneven speed: each gets as many sequences of the global batch as it can do in the time of the others.

The gradient stays the exact mean of the global batch: each loss is divided by the tokens of the whole batch, gradients
are summed, and all but a rank's last micro-batch go without synchronisation (Li et al. 2020, section 3.2.4), so ranks
may have different numbers of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

EVERY_STEPS = 20
"""Steps between looks at the speeds."""
_NEW = 0.5
"""Weight of what was measured since the last look; the rest is what was known before."""


def shares(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to speeds by the method of largest remainders, each at least 1.

    Args:
        total: what they add up to.
        speeds: of the ranks, above 0 and finite.

    Raises:
        ValueError: if there is less than one for each, or a speed is no speed.
    """
    if total < len(speeds) or not all(0 < speed < float("inf") for speed in speeds):
        raise ValueError(f"{total} sequences for ranks of speeds {list(speeds)}")
    rest = total - len(speeds)  # one each is dealt first
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
    """Seconds that this rank computes. Of forward passes alone: a backward pass waits for the slowest rank.

    Args:
        device: where; a GPU is timed by its own events, read when ``seconds`` is asked for.
        clock: seconds; for tests.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._cuda, self._clock = device.type == "cuda", clock
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what happens inside."""
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
        """Seconds since it was asked last."""
        for begun, ended in self._events:
            ended.synchronize()
            self._seconds += begun.elapsed_time(ended) / 1e3
        seconds, self._seconds = self._seconds, 0.0
        self._events.clear()
        return seconds


class Balance:
    """Decides who gets how many sequences; the same on every rank, for all decide from the same numbers.

    Attributes:
        counts: sequences of each rank; even until speeds are known.

    Args:
        total: sequences of the global batch.
        group: of the replicas.
        watch: of this rank.
        every_steps: between looks.
    """

    def __init__(self, total: int, group: dist.ProcessGroup, watch: Stopwatch, every_steps: int = EVERY_STEPS) -> None:
        self._total, self._group, self._watch, self._every = total, group, watch, every_steps
        self._pace: list[float] | None = None
        self._steps = 0
        self.counts = shares(total, [1.0] * group.size())

    def after_step(self, device: torch.device) -> tuple[int, ...] | None:
        """Count a step. Collective every few steps.

        Returns:
            sequences of each rank from the next step on, if they change.
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
        """Smooth seconds per sequence; a rank that measured nothing keeps what is known of it."""
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
