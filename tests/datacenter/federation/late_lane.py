"""A GPU's lane, emulated on the CPU: results are in host memory only once a chunk has been waited for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from atoll.datacenter.federation.lane import Lane

_GARBAGE = 0x55


class LateLane(Lane):
    """Copies through the buffers of two chunks, as with a GPU; each copy to the host is made when it is waited for."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._queued: list[tuple[Tensor, Tensor]] = []
        self._copied = 0

    @property
    def runs_ahead(self) -> bool:
        return True

    def load(self, name: str, values: Tensor) -> Tensor:
        buffer = self.host(name, values.numel())
        if buffer.data_ptr() != values.data_ptr():
            buffer.copy_(values)
        return buffer

    def fetch(self, name: str, values: Tensor) -> Tensor:
        buffer = self._memory(name, values.numel(), values.dtype)
        buffer.view(torch.uint8).fill_(_GARBAGE)
        self._queued.append((buffer, values.clone()))
        return buffer

    def mark(self) -> Callable[[], object]:
        return partial(self._copy, len(self._queued))

    def _copy(self, until: int) -> None:
        for buffer, values in self._queued[self._copied : until]:
            buffer.copy_(values)
        self._copied = max(self._copied, until)
