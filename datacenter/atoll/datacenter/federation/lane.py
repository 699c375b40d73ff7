"""Copies between host and device beside the device's other work.

On a GPU: a stream of its own, and page-locked memory for two chunks, so that a chunk is encoded and copied while the
one before it is sent. Pageable memory would make each copy wait for the host, and the default stream would put each
behind the kernels of training. On a CPU values are used where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import World

TURNS = 2
"""Chunks in work at a time."""


class Lane:
    """See the module. One thread at a time uses it.

    Args:
        device: device of the weights, see ``weights_device``.
        plain: use the device's default stream and pageable memory on a GPU too, to compare.

    Attributes:
        device: the same.
    """

    def __init__(self, device: torch.device, *, plain: bool = False) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and not plain:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._room: dict[tuple[int, str], Tensor] = {}
        self._turn = 0

    @property
    def runs_ahead(self) -> bool:
        """Whether chunks can be in work while the caller does something else."""
        return self._stream is not None

    def follow(self) -> None:
        """Let what comes wait for what has been queued on the device so far, by this thread."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def beside(self) -> AbstractContextManager[object]:
        """Enter the side stream for the next chunk; the last but one must have been waited for."""
        self._turn = (self._turn + 1) % TURNS
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def host(self, name: str, size: int) -> Tensor:
        """Return float32 memory of the host for an input of this chunk, to be filled and given to ``load``."""
        return self._memory(name, size, torch.float32)

    def load(self, name: str, values: Tensor) -> Tensor:
        """Return values of the host on the device, as float32."""
        if self.device.type == "cpu":
            return values.to(torch.float32)
        if self._stream is None:
            return values.to(self.device, torch.float32)
        room = self.host(name, values.numel())
        if room.data_ptr() != values.data_ptr():
            room.copy_(values)
        return room.to(self.device, non_blocking=True)

    def fetch(self, name: str, values: Tensor) -> Tensor:
        """Return values of the device on the host, where they are once the chunk has been waited for."""
        if self._stream is None:
            return values.cpu()
        room = self._memory(name, values.numel(), values.dtype)
        room.copy_(values, non_blocking=True)
        return room

    def mark(self) -> Callable[[], object]:
        """Return what waits for everything that was queued for this chunk."""
        if self._stream is None:
            return _nothing
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record(self._stream)
        return event.synchronize

    def _memory(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return memory that is free once this turn comes again; page-locked beside a GPU."""
        key = (self._turn, name)
        found = self._room.get(key)
        if found is None or found.numel() < size or found.dtype != dtype:
            found = self._room[key] = torch.empty(size, dtype=dtype, pin_memory=self._stream is not None)
        return found[:size]


def weights_device(job: SiloJob, world: World) -> torch.device:
    """Return where a job keeps its weights between steps: not on the GPU if they are offloaded."""
    return torch.device("cpu") if job.data_parallel.cpu_offload else world.device


def _nothing() -> None:
    """Nothing is queued on a CPU."""
