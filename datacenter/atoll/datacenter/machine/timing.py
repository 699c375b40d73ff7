"""Seconds of a piece of work, measured so that two runs agree: warmed up, repeated, with their spread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

SAMPLES = 9
"""Measured per piece of work; their median counts."""
SAMPLE_S = 0.01
"""A sample lasts at least about so long: quick work is called several times within it ..."""
MAX_CALLS = 100
"""... but not more often than this."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call.

    Attributes:
        seconds: median over samples; in a process group each sample is its slowest rank's.
        spread: half the distance between the quartiles, as a share of the median.
        calls: in all samples together.
    """

    seconds: float
    spread: float
    calls: int


def measure(work: Callable[[], object], device: torch.device, *, together: bool = False) -> Timing:
    """Time ``work``.

    On a GPU by CUDA events around each sample, whose calls are queued without waiting in between: what is measured is
    the device's time, and the host's only where it is the slower. On a CPU by the clock.

    Args:
        work: is called several times; must not depend on how often.
        device: where it works.
        together: every rank measures the same work at the same time; samples begin at a barrier.
    """
    first = _sample(work, device, 1)  # warms up too: allocations, handles, connections
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
    """Each figure's largest over ranks."""
    if not together or not dist.is_initialized():
        return seconds
    shared = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return [float(value) for value in shared.tolist()]
