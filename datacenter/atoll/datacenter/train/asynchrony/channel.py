"""Messages between worker and server: tensors, point to point over gloo.

A request is a header of float64 ``[kind, tokens, loss]``; a push is followed by the gradient. A pull is answered by one
float64, ``GO`` or ``STOP``; after ``GO`` come the parameters. Both are float32 vectors of the model's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.errors import TrainingError

SERVER = 0
"""The server's rank; worker w is rank w + 1."""
PULL, PUSH, DONE = 0.0, 1.0, 2.0
GO, STOP = 0.0, 1.0


@dataclass(frozen=True, slots=True)
class Push:
    """Update of a worker.

    Attributes:
        gradient: gradient of the sum of losses, not divided.
        tokens: number of counted tokens.
        loss: sum of losses over them.
    """

    gradient: Tensor
    tokens: int
    loss: float


class ServersEnd:
    """The server's end of the connection to one worker."""

    def __init__(self, group: dist.ProcessGroup, worker: int, size: int) -> None:
        self._group, self._rank, self._size = group, worker + 1, size

    def request(self) -> Push | Literal["pull", "done"]:
        """Return the worker's next request.

        Raises:
            RuntimeError: if the worker is lost, or silent for longer than the group's timeout.
        """
        header = torch.empty(3, dtype=torch.float64)
        dist.recv(header, group=self._group, group_src=self._rank)
        kind, tokens, loss = header.tolist()
        if kind == PUSH:
            gradient = torch.empty(self._size)
            dist.recv(gradient, group=self._group, group_src=self._rank)
            return Push(gradient, int(tokens), loss)
        return "pull" if kind == PULL else "done"

    def go(self, parameters: Tensor) -> None:
        """Answer a pull with the parameters."""
        dist.send(torch.tensor([GO], dtype=torch.float64), group=self._group, group_dst=self._rank)
        dist.send(parameters, group=self._group, group_dst=self._rank)

    def stop(self) -> None:
        """Answer a pull: training is over."""
        dist.send(torch.tensor([STOP], dtype=torch.float64), group=self._group, group_dst=self._rank)


class WorkersEnd:
    """A worker's end of the connection to the server.

    Raises:
        TrainingError: from each method, if the server is lost, silent for longer than the group's timeout, or has
            stopped because another worker was lost.
    """

    def __init__(self, group: dist.ProcessGroup, size: int) -> None:
        self._group, self._size = group, size

    def pull(self) -> Tensor:
        """Wait for permission to read, then read the parameters."""
        self._send_header([PULL, 0.0, 0.0])
        answer = self._receive(torch.empty(1, dtype=torch.float64))
        if answer.item() == STOP:
            raise TrainingError("the parameter server has stopped, because a worker was lost: rank 0 says which")
        return self._receive(torch.empty(self._size))

    def push(self, update: Push) -> None:
        """Send an update."""
        self._send_header([PUSH, float(update.tokens), update.loss])
        self._send_tensor(update.gradient)

    def done(self) -> None:
        """Tell the server that this worker is done."""
        self._send_header([DONE, 0.0, 0.0])

    def _send_header(self, header: list[float]) -> None:
        self._send_tensor(torch.tensor(header, dtype=torch.float64))

    def _send_tensor(self, message: Tensor) -> None:
        try:
            dist.send(message, group=self._group, group_dst=SERVER)
        except RuntimeError as error:
            raise _lost(error) from error

    def _receive(self, message: Tensor) -> Tensor:
        try:
            dist.recv(message, group=self._group, group_src=SERVER)
        except RuntimeError as error:
            raise _lost(error) from error
        return message


def _lost(error: RuntimeError) -> TrainingError:
    return TrainingError(f"the parameter server, rank {SERVER}, is lost or does not answer: {error}")
