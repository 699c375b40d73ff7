"""Micro-batches that end early once their gradient is no longer needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from atoll.datacenter.parallel.passes import MicroBatch


@dataclass
class Brake:
    """Ends passes between two micro-batches.

    Attributes:
        is_needless: asked before each micro-batch, on every rank; returns the same on each.
        pulled: whether passes have ended early.
    """

    is_needless: Callable[[], bool]
    pulled: bool = False

    def __call__(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """Return the same micro-batches; an iteration over them ends early."""
        return _Braked(batches, self)


class _Braked(Sequence["MicroBatch"]):
    def __init__(self, batches: Sequence[MicroBatch], brake: Brake) -> None:
        self._batches, self._brake = batches, brake

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> MicroBatch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MicroBatch]: ...
    def __getitem__(self, index: int | slice) -> MicroBatch | Sequence[MicroBatch]:
        return self._batches[index]

    def __iter__(self) -> Iterator[MicroBatch]:
        for batch in self._batches:
            if self._brake.is_needless():
                self._brake.pulled = True
                return
            yield batch
