"""Measure for how much of a step a pipeline rank waits: the bubble that its schedule predicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

_PASSES = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
"""Methods in which a stage computes; it sends and receives outside of them."""


class _Mark(Protocol):
    def seconds_until(self, other: Any) -> float: ...


class _Instant:
    """A reading of a clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._at = clock()

    def seconds_until(self, other: _Instant) -> float:
        return other._at - self._at  # another event of this kind


class _Event:
    """An event in the GPU's queue."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._event.record()

    def seconds_until(self, other: _Event) -> float:
        other._event.synchronize()
        milliseconds: float = self._event.elapsed_time(other._event)
        return milliseconds / 1000


class BusyClock:
    """Measures when a rank's stages compute. Collectives of tensor and data parallelism within a pass count as work."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._mark: Callable[[], _Mark] = _Event if device.type == "cuda" else lambda: _Instant(clock)
        self._passes: list[tuple[_Mark, _Mark]] = []
        self._step: tuple[_Mark, _Mark] | None = None

    def listen(self, stage: object) -> None:
        """Start to record when the stage computes."""
        for name in _PASSES:
            setattr(stage, name, self._noted(getattr(stage, name)))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Enclose all passes of a step."""
        self._passes.clear()
        begin = self._mark()
        yield
        self._step = begin, self._mark()

    def idle_share(self) -> float:
        """Return the share of the last step in which this rank did not compute; 0 before it. Waits for the GPU."""
        if self._step is None:
            return 0.0
        busy = sum(begin.seconds_until(end) for begin, end in self._passes)
        return 1 - busy / self._step[0].seconds_until(self._step[1])

    def _noted(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            begin = self._mark()
            result = inner(*args, **kwargs)
            self._passes.append((begin, self._mark()))
            return result

        return noted
