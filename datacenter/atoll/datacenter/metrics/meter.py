"""Counters between two records: time, waiting, tokens, memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Interval:
    """Measurements since the previous interval; fields as in ``StepRecord``."""

    steps: int
    tokens: int
    seconds: float
    data_wait_s: float
    peak_memory_bytes: int


class Meter:
    """One rank's counters; ``lap`` ends an interval and begins the next.

    Args:
        device: device of this rank.
        clock: returns seconds.
        together: whether ``lap`` is called on all ranks at the same step.
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float] = time.perf_counter, *, together: bool = True
    ) -> None:
        self._device, self._together = device, together
        self._clock = clock
        self._begin()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Enclose the wait for the next batch."""
        began = self._clock()
        try:
            yield
        finally:
            self._waited_s += self._clock() - began

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Exclude the enclosed work from the seconds. On a GPU it begins when queued work is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        began = self._clock()
        try:
            yield
        finally:
            self._began += self._clock() - began

    def step(self, tokens: int) -> None:
        """Count one optimiser step with this number of tokens over all ranks."""
        self._steps += 1
        self._tokens += tokens

    def lap(self) -> Interval:
        """End the interval.

        With ``together``, waiting and memory are maxima over all ranks, which is a collective if there is a process
        group. On a GPU this waits for the work queued on the device, so that the seconds cover the work, not only its
        queueing.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        mine = torch.tensor([self._waited_s, peak_memory_bytes(self._device)], dtype=torch.float64)
        if self._together and dist.is_initialized() and dist.get_world_size() > 1:
            shared = mine.to(self._device)
            dist.all_reduce(shared, dist.ReduceOp.MAX)
            mine = shared.cpu()
        waited_s, peak = mine.tolist()
        found = Interval(self._steps, self._tokens, self._clock() - self._began, waited_s, int(peak))
        self._begin()
        return found

    def _begin(self) -> None:
        self._began = self._clock()
        self._waited_s, self._tokens, self._steps = 0.0, 0, 0
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory in use.

    On a GPU: memory of tensors since the last reset. On a CPU: the process's resident memory since it started.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
