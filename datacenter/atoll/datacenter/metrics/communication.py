"""How much of a trace is communication.

``communication_share`` is the part of the traced time in which at least one collective or transfer is under way.
``exposed_share`` is the part in which one is under way and the device computes nothing: what overlap has not hidden. It
is known for CUDA traces alone, where both are kernels; gloo works in threads beside the ones that compute, on the same
cores, so that nothing like it can be told apart there.
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
        traced_s: how long was traced.
        communication_share: with communication under way.
        exposed_share: with nothing else under way on the device; None where that is not known (CPU).
    """

    traced_s: float
    communication_share: float
    exposed_share: float | None


def communication_of(events: Iterable[FunctionEvent]) -> Communication:
    """What a profile's events (``profile.events()``) say of communication.

    Communication is what PyTorch names so: on CUDA kernels ``nccl...``, else operations ``gloo:...``.
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
    """The same time as spans that do not touch, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def overlap(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    """The time that is in both; each as ``merged`` gives it."""
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
    """Of all of them together; they must not overlap."""
    return sum(end - begin for begin, end in spans)
