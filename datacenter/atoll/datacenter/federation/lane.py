"""Copies between host and device in parallel with the device's other work.

On a GPU, a lane has its own stream and page-locked memory for two chunks, so that one chunk is encoded and copied while
the previous one is sent. Pageable memory would make each copy wait for the host, and the default stream would queue
each copy behind the kernels of training. On a CPU, values are used in place.
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

CHUNKS_IN_WORK = 2
"""Maximum number of chunks in progress; each has its own set of buffers."""


class Lane:
    """See the module. One thread at a time uses it.

    Args:
        device: device of the weights, see ``weights_device``.
        plain: use the device's default stream and pageable memory on a GPU too, to compare.

    Attributes:
        device: device of the weights.
    """

    def __init__(self, device: torch.device, *, plain: bool = False) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and not plain:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._buffers: dict[tuple[int, str], Tensor] = {}
        self._buffer_set = 0

    @property
    def runs_ahead(self) -> bool:
        """Whether the device computes chunks while the caller does something else."""
        return self._stream is not None

    def follow(self) -> None:
        """Make later work of the lane wait for what this thread has queued on the device so far."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def beside(self) -> AbstractContextManager[object]:
        """Enter the side stream for the next chunk; the chunk before the last must be complete."""
        self._buffer_set = (self._buffer_set + 1) % CHUNKS_IN_WORK
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def host(self, name: str, size: int) -> Tensor:
        """Return float32 host memory for an input of this chunk; fill it and pass it to ``load``."""
        return self._memory(name, size, torch.float32)

    def load(self, name: str, values: Tensor) -> Tensor:
        """Copy values from the host to the device, as float32."""
        if self.device.type == "cpu":
            return values.to(torch.float32)
        if self._stream is None:
            return values.to(self.device, torch.float32)
        buffer = self.host(name, values.numel())
        if buffer.data_ptr() != values.data_ptr():
            buffer.copy_(values)
        return buffer.to(self.device, non_blocking=True)

    def fetch(self, name: str, values: Tensor) -> Tensor:
        """Copy values from the device to the host; they are valid once the wait of ``mark`` has returned."""
        if self._stream is None:
            return values.cpu()
        buffer = self._memory(name, values.numel(), values.dtype)
        buffer.copy_(values, non_blocking=True)
        return buffer

    def mark(self) -> Callable[[], object]:
        """Return a function that waits for everything that was queued for this chunk."""
        if self._stream is None:
            return _nothing
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record(self._stream)
        return event.synchronize

    def _memory(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return memory that the chunk after the next reuses; page-locked with a GPU."""
        key = (self._buffer_set, name)
        found = self._buffers.get(key)
        if found is None or found.numel() < size or found.dtype != dtype:
            found = self._buffers[key] = torch.empty(size, dtype=dtype, pin_memory=self._stream is not None)
        return found[:size]


def weights_device(job: SiloJob, world: World) -> torch.device:
    """Return where a job keeps its weights between steps: not on the GPU if they are offloaded."""
    return torch.device("cpu") if job.data_parallel.cpu_offload else world.device


def _nothing() -> None:
    """Do nothing: on a CPU nothing is queued."""
