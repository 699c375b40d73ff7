"""Messages between worker and server, point to point.

A request is a header of float64 ``[kind, tokens, loss]``; a push is followed by the gradient. A pull is answered by one
float64, ``GO`` or ``STOP``; after ``GO`` come the parameters. Both are float32 vectors of the model's size. Where
vectors have a group of their own (``Link.confirmed``), the worker sends one float64, ``TRANSFERRED``, once it has sent
or received one: the server waits for that before it waits for the transfer, so it learns at once of a worker that dies
in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.train.asynchrony.links import SERVER, Link, settle

PULL, PUSH, DONE = 0.0, 1.0, 2.0
GO, STOP = 0.0, 1.0
TRANSFERRED = 0.0
_KINDS: dict[float, Literal["pull", "push", "done"]] = {PULL: "pull", PUSH: "push", DONE: "done"}


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


@dataclass(frozen=True, slots=True)
class Request:
    """A worker's request.

    Attributes:
        kind: what it asks for; after ``push`` the server receives the gradient.
        tokens: number of counted tokens of a push.
        loss: sum of losses over them.
    """

    kind: Literal["pull", "push", "done"]
    tokens: int
    loss: float


class ServersEnd:
    """The server's end of the connection to one worker. Each method waits until the message has been transferred.

    Raises:
        RuntimeError: from each method, if the worker is lost, or silent for longer than the group's timeout.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def request(self) -> Request:
        """Return the worker's next request."""
        header = self._received(3)
        return Request(_KINDS[header[0]], int(header[1]), header[2])

    def receive(self, gradient: Tensor) -> None:
        """Receive the gradient of a push into this vector."""
        dist.recv(gradient, src=self._link.peer, group=self._link.vectors)
        self._settle()

    def go(self, parameters: Tensor) -> None:
        """Answer a pull with the parameters."""
        self._answer(GO)
        dist.send(parameters, dst=self._link.peer, group=self._link.vectors)
        self._settle()

    def stop(self) -> None:
        """Answer a pull: training is over."""
        self._answer(STOP)

    def _answer(self, answer: float) -> None:
        message = torch.tensor([answer], dtype=torch.float64)
        dist.send(message, dst=self._link.peer, group=self._link.control)

    def _settle(self) -> None:
        if self._link.confirmed:
            self._received(1)
        settle(self._link.device)

    def _received(self, size: int) -> list[float]:
        message = torch.empty(size, dtype=torch.float64)
        dist.recv(message, src=self._link.peer, group=self._link.control)
        found: list[float] = message.tolist()
        return found


class WorkersEnd:
    """A worker's end of the connection to the server.

    Attributes:
        buffer: float32 vector of the model's size, on the worker's device: the parameters after ``pull``, until the
            next call; the caller may put the gradient there for ``push``.

    Raises:
        TrainingError: from each method, if the server is lost, silent for longer than the group's timeout, or has
            stopped because another worker was lost.
    """

    def __init__(self, link: Link, size: int) -> None:
        self._link = link
        self.buffer = torch.empty(size, device=link.device)

    def pull(self) -> Tensor:
        """Wait for permission to read, then read the parameters."""
        self._send_control([PULL, 0.0, 0.0])
        answer = self._receive(torch.empty(1, dtype=torch.float64), self._link.control)
        if answer.item() == STOP:
            raise TrainingError("the parameter server has stopped, because a worker was lost: rank 0 says which")
        self._receive(self.buffer, self._link.vectors)
        self._settle()
        return self.buffer

    def push(self, update: Push) -> None:
        """Send an update."""
        self._send_control([PUSH, float(update.tokens), update.loss])
        self._send(update.gradient, self._link.vectors)
        self._settle()

    def done(self) -> None:
        """Tell the server that this worker is done."""
        self._send_control([DONE, 0.0, 0.0])

    def _settle(self) -> None:
        settle(self._link.device)
        if self._link.confirmed:
            self._send_control([TRANSFERRED])

    def _send_control(self, message: list[float]) -> None:
        self._send(torch.tensor(message, dtype=torch.float64), self._link.control)

    def _send(self, message: Tensor, group: dist.ProcessGroup) -> None:
        try:
            dist.send(message, dst=SERVER, group=group)
        except RuntimeError as error:
            raise _lost(error) from error

    def _receive(self, message: Tensor, group: dist.ProcessGroup) -> Tensor:
        try:
            dist.recv(message, src=SERVER, group=group)
        except RuntimeError as error:
            raise _lost(error) from error
        return message


def _lost(error: RuntimeError) -> TrainingError:
    return TrainingError(f"the parameter server, rank {SERVER}, is lost or does not answer: {error}")
