"""Measure the share of communication in a trace.

``communication_share`` is the share of the traced time in which at least one collective or transfer is in progress.
``exposed_share`` is the share in which one is in progress and the device computes nothing: what overlap has not hidden.
It is known only for CUDA traces, where both are kernels. gloo works in threads beside the computing ones, on the same
cores, so the two cannot be separated there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.autograd.profiler_util import FunctionEvent

Span = tuple[float, float]
"""Begin and end in microseconds."""


@dataclass(frozen=True, slots=True)
class Communication:
    """Shares of the traced time, from 0 to 1.

    Attributes:
        traced_s: duration of the trace.
        communication_share: share with communication in progress.
        exposed_share: share with only communication in progress on the device; None where it is not known (CPU).
    """

    traced_s: float
    communication_share: float
    exposed_share: float | None


def communication_of(events: Iterable[FunctionEvent]) -> Communication:
    """Measure communication in a profile's events (``profile.events()``).

    Communication is found by PyTorch's names: on CUDA kernels ``nccl...``, else operations ``gloo:...``.
    """
    spans: list[Span] = []
    kernels: list[Span] = []
    nccl: list[Span] = []
    gloo: list[Span] = []
    for event in events:
        span = (float(event.time_range.start), float(event.time_range.end))
        spans.append(span)
        if event.device_type.name == "CUDA":
            (nccl if event.name.startswith("nccl") else kernels).append(span)
        elif event.name.startswith("gloo:"):
            gloo.append(span)
    if not spans:
        return Communication(0.0, 0.0, None)
    traced = max(end for _, end in spans) - min(begin for begin, _ in spans)
    if traced <= 0:
        return Communication(0.0, 0.0, None)
    on_cuda = bool(kernels or nccl)
    busy = merged(nccl if on_cuda else gloo)
    exposed = (length(busy) - length(overlap(busy, merged(kernels)))) / traced if on_cuda else None
    return Communication(traced / 1e6, length(busy) / traced, exposed)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Merge spans that touch; returns the same time in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def overlap(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    """Return the time that is in both; inputs and output as ``merged`` returns them."""
    found: list[Span] = []
    first = second = 0
    while first < len(left) and second < len(right):
        begin, end = max(left[first][0], right[second][0]), min(left[first][1], right[second][1])
        if begin < end:
            found.append((begin, end))
        if left[first][1] < right[second][1]:
            first += 1
        else:
            second += 1
    return found


def length(spans: Iterable[Span]) -> float:
    """Return the total length of spans that do not overlap."""
    return sum(end - begin for begin, end in spans)
