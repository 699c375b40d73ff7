"""Time work reproducibly: with warm-up, repetitions, and a measure of their spread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

SAMPLES = 9
"""Samples of each measurement; the median counts."""
SAMPLE_S = 0.01
"""Minimum duration of a sample: short work is called several times within it."""
MAX_CALLS = 100
"""Maximum number of calls within a sample."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call.

    Attributes:
        seconds: median over samples; in a process group each sample is its slowest rank's.
        spread: half the distance between the quartiles, as a share of the median.
        calls: number of calls in all samples.
    """

    seconds: float
    spread: float
    calls: int


def measure(work: Callable[[], object], device: torch.device, *, together: bool = False) -> Timing:
    """Time ``work``.

    On a GPU, CUDA events enclose each sample, whose calls are queued without waiting in between. This measures the
    device's time, and the host's only if the host is slower. On a CPU the clock is used.

    Args:
        work: called several times; must not depend on the number of calls.
        device: device that does the work.
        together: every rank measures the same work at the same time; samples begin at a barrier.
    """
    first = _sample(work, device, 1)  # also warms up: allocations, handles, connections
    once = _slowest([min(first, _sample(work, device, 1))], device, together=together)[0]
    calls = max(1, min(MAX_CALLS, math.ceil(SAMPLE_S / max(once, 1e-9))))
    samples = []
    for _ in range(SAMPLES):
        if together and dist.is_initialized():
            dist.barrier()
        samples.append(_sample(work, device, calls) / calls)
    ordered = sorted(_slowest(samples, device, together=together))
    middle = ordered[SAMPLES // 2]
    return Timing(middle, (ordered[SAMPLES * 3 // 4] - ordered[SAMPLES // 4]) / 2 / middle, calls * SAMPLES)


def _sample(work: Callable[[], object], device: torch.device, calls: int) -> float:
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's own
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1000
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - began


def _slowest(seconds: list[float], device: torch.device, *, together: bool) -> list[float]:
    """Return the largest of each figure over the ranks."""
    if not together or not dist.is_initialized():
        return seconds
    shared = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return [float(value) for value in shared.tolist()]
