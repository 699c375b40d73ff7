"""The parameter server: one thread for each worker, which waits until the worker may read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.train.asynchrony.channel import Push, Request, ServersEnd
from atoll.datacenter.train.asynchrony.clocks import Clocks
from atoll.datacenter.train.asynchrony.links import IN_TRANSIT, Buffers, Link, own_stream, settle
from atoll.datacenter.train.asynchrony.vector import read, size_of

if TYPE_CHECKING:
    from atoll.datacenter.train.asynchrony.updates import Updates


class Server:
    """Serves parameters to workers with bounded staleness.

    On a GPU, each thread has a stream of its own and waits for the device before another thread continues with its
    result. Memory in addition to parameters and optimiser: ``IN_TRANSIT`` vectors.

    Attributes:
        clocks: clocks of the workers.

    Args:
        parameters: the parameters served.
        updates: applies the workers' updates.
        clocks: decide when a worker may read.
        links: the connections to the workers, in order, with the device of the parameters.
        timeout_s: maximum time that a worker waits for the slowest; equal to the timeout of the links.
        heard: called with worker, clock and update for each update. From any thread, one call at a time.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        updates: Updates,
        clocks: Clocks,
        links: Sequence[Link],
        timeout_s: float,
        heard: Callable[[int, int, Push], None],
    ) -> None:
        self._parameters, self._updates, self.clocks = parameters, updates, clocks
        self._links, self._timeout_s, self._heard = links, timeout_s, heard
        self._device = links[0].device
        self._buffers = Buffers(min(IN_TRANSIT, len(links)), size_of(parameters), self._device, timeout_s)
        self._lock = threading.Lock()
        self._failures: list[TrainingError] = []

    def serve(self) -> None:
        """Serve until all workers are done.

        Raises:
            TrainingError: if a worker is lost or hangs, naming it and its clock; at the latest after twice the timeout,
                because the other workers find out at their next read.
        """
        settle(self._device)
        workers = range(len(self._links))
        threads = [threading.Thread(target=self._serve, args=(worker,), name=f"worker-{worker}") for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _serve(self, worker: int) -> None:
        try:
            with own_stream(self._device):
                self._talk(worker, ServersEnd(self._links[worker]))
        except TrainingError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  # a lost peer is a RuntimeError; all workers must hear of any error
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
        while (request := channel.request()).kind != "done":
            if request.kind == "pull":
                self._answer(worker, channel)
            else:
                self._take(worker, channel, request)
        self.clocks.leave(worker)

    def _answer(self, worker: int, channel: ServersEnd) -> None:
        try:
            self.clocks.wait_to_read(worker, self._timeout_s)
        except TrainingError:
            channel.stop()
            raise
        with self._buffers.one() as buffer:
            with self._lock:
                read(self._parameters, buffer)
                settle(self._device)
            channel.go(buffer)

    def _take(self, worker: int, channel: ServersEnd, request: Request) -> None:
        def apply(clock: int) -> None:
            with self._lock:
                self._updates.take(worker, clock, update)
                settle(self._device)
                self._heard(worker, clock, update)

        with self._buffers.one() as buffer:
            channel.receive(buffer)
            update = Push(buffer, request.tokens, request.loss)
            self.clocks.advance(worker, apply)
