"""Connections between the parameter server and its workers: groups for messages, and memory for those in transit.

Headers and answers are small and travel over gloo, whose receive fails as soon as the other process dies. Vectors of
the model's size travel where they are used: over gloo in host memory, or over NCCL from GPU to GPU. With NCCL each
worker has a group of its own with the server, because the operations of one communicator run one after the other and
must be queued in the same order at both ends.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.mesh import host_group, pair_group

SERVER = 0
"""The server's rank; worker w is rank w + 1."""
IN_TRANSIT = 4
"""Maximum number of vectors that a server receives and sends at a time; more workers wait for each other."""


@dataclass(frozen=True, slots=True)
class Link:
    """This rank's end of the connection between server and one worker.

    Attributes:
        peer: rank at the other end.
        control: gloo group of all ranks, for headers, answers and confirmations.
        vectors: group for vectors.
        device: where this rank's vectors are.
    """

    peer: int
    control: dist.ProcessGroup
    vectors: dist.ProcessGroup
    device: torch.device

    @property
    def confirmed(self) -> bool:
        """Whether the worker confirms each vector over ``control``, because its transfer does not fail when it dies."""
        return self.vectors is not self.control


def open_links(device: torch.device, timeout_s: float, *, paired: bool | None = None) -> list[Link]:
    """Open the connections of this rank; collective.

    Args:
        device: device of this rank.
        timeout_s: limit of a message.
        paired: whether vectors have a group of their own for each worker; None: on GPUs.

    Returns:
        On the server one for each worker, in order; on a worker the one to the server.
    """
    control = host_group(timeout_s)
    rank, workers = dist.get_rank(), range(1, dist.get_world_size())
    if paired is None:
        paired = device.type == "cuda"
    groups = {worker: pair_group(SERVER, worker, device.type, timeout_s) if paired else control for worker in workers}
    if rank == SERVER:
        return [Link(worker, control, group, device) for worker, group in groups.items()]
    return [Link(SERVER, control, groups[rank], device)]


class Buffers:
    """Memory for vectors in transit, used again and again; thread-safe.

    Args:
        number: number of vectors.
        size: elements of each, float32.
        device: where they are.
        timeout_s: maximum time to wait for one: that of the message before it.
    """

    def __init__(self, number: int, size: int, device: torch.device, timeout_s: float) -> None:
        self._number, self._timeout_s = number, timeout_s
        self._free: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        for _ in range(number):
            self._free.put(torch.empty(size, device=device))

    @contextmanager
    def one(self) -> Iterator[Tensor]:
        """Wait for a vector; the device must have finished its work on it when the context ends.

        Raises:
            TrainingError: if none is free in time.
        """
        try:
            buffer = self._free.get(timeout=self._timeout_s)
        except queue.Empty:
            raise TrainingError(
                f"{self._number} transfers to or from workers have not ended within {self._timeout_s:g} s: set "
                "faults.collective_timeout_s higher, or find out why those workers hang"
            ) from None
        try:
            yield buffer
        finally:
            self._free.put(buffer)


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """Give this thread a stream of its own, so that it does not wait for the transfers of other threads."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # torch leaves it untyped


def settle(device: torch.device) -> None:
    """Wait until the device has done what this thread has queued: other threads use other streams."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
