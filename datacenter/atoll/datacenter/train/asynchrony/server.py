"""The parameter server: one thread for each worker, which waits until the worker may read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.train.asynchrony.channel import ServersEnd
from atoll.datacenter.train.asynchrony.clocks import Clocks
from atoll.datacenter.train.asynchrony.vector import read, size_of

if TYPE_CHECKING:
    import torch.distributed as dist

    from atoll.datacenter.train.asynchrony.channel import Push
    from atoll.datacenter.train.asynchrony.updates import Updates


class Server:
    """Serves parameters to workers with bounded staleness.

    Memory in addition to parameters and optimiser: for each worker an incoming and an outgoing vector.

    Attributes:
        clocks: clocks of the workers.

    Args:
        parameters: the parameters served.
        updates: applies the workers' updates.
        clocks: decide when a worker may read.
        group: gloo; rank 0 is the server, the others are workers. Its timeout bounds every message.
        timeout_s: maximum time that a worker waits for the slowest; equal to the group's timeout.
        heard: called with worker, clock and update for each update. From any thread, one call at a time.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        updates: Updates,
        clocks: Clocks,
        group: dist.ProcessGroup,
        timeout_s: float,
        heard: Callable[[int, int, Push], None],
    ) -> None:
        self._parameters, self._updates, self.clocks = parameters, updates, clocks
        self._group, self._timeout_s, self._heard = group, timeout_s, heard
        self._lock = threading.Lock()
        self._failures: list[TrainingError] = []

    def serve(self) -> None:
        """Serve until all workers are done.

        Raises:
            TrainingError: if a worker is lost or hangs, naming it and its clock; at the latest after twice the timeout,
                because the other workers find out at their next read.
        """
        workers = range(self._group.size() - 1)
        threads = [threading.Thread(target=self._serve, args=(worker,), name=f"worker-{worker}") for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _serve(self, worker: int) -> None:
        try:
            self._talk(worker, ServersEnd(self._group, worker, size_of(self._parameters)))
        except TrainingError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  # gloo raises RuntimeError; all workers must hear of any error
            self._fail(
                TrainingError(
                    f"worker {worker} (rank {worker + 1}) was lost after clock {self.clocks.clock(worker)}, or was "
                    f"silent for {self._timeout_s:g} s: {error}"
                )
            )

    def _fail(self, error: TrainingError) -> None:
        with self._lock:
            self._failures.append(error)
        self.clocks.fail(error)

    def _talk(self, worker: int, channel: ServersEnd) -> None:
        while (request := channel.request()) != "done":
            if request == "pull":
                self._answer(worker, channel)
            else:
                self._take(worker, request)
        self.clocks.leave(worker)

    def _answer(self, worker: int, channel: ServersEnd) -> None:
        try:
            self.clocks.wait_to_read(worker, self._timeout_s)
        except TrainingError:
            channel.stop()
            raise
        with self._lock:
            parameters = read(self._parameters)
        channel.go(parameters)

    def _take(self, worker: int, update: Push) -> None:
        def apply(clock: int) -> None:
            with self._lock:
                self._updates.take(worker, clock, update)
                self._heard(worker, clock, update)

        self.clocks.advance(worker, apply)
