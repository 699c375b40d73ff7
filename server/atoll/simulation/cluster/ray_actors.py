"""The workers of a run: started together, informed of every round, and replaced when they are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from atoll.simulation.cluster.actor import Setup
from atoll.simulation.cluster.connection import resources, room_for
from atoll.simulation.cluster.link import Link, LostError, Ref, answer, answer_now
from atoll.simulation.cluster.ray_workers import RayWorkers
from atoll.simulation.cluster.records import TRIES
from atoll.simulation.errors import SetupError, SimulationError
from atoll.simulation.tasks import Opening
from atoll.simulation.worker_pool import Key

log = logging.getLogger(__name__)

CLOSE_S = 10.0
"""Time for workers to close their participants, and for workers that are starting to have started, in seconds."""


class RayActors:
    """The running workers, and those that are starting.

    Args:
        setup: settings of every worker.
        workers: their number and resources.

    Attributes:
        links: the running workers.
        openings: the open rounds, and their models in Ray's store.
        changed: called when a worker has started or has failed to start.
        failed: called with a worker's error for which no call waits.

    Raises:
        SetupError: if they cannot start; all are ended then.
    """

    def __init__(self, setup: Setup, workers: RayWorkers) -> None:
        self._workers = workers
        self._setup = _stored(setup)
        self._numbers = count()
        self.openings: dict[Key, tuple[Opening, Ref]] = {}
        self._model: tuple[Path, Ref] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._starting: set[Link] = set()
        self.changed: Callable[[], None] = _nothing
        self.failed: Callable[[Exception], None] = _nothing
        self.links = self._first(workers.count or room_for(workers))

    @property
    def is_starting(self) -> bool:
        """Whether a worker is starting."""
        return bool(self._starting)

    def open(self, opening: Opening) -> None:
        """Put a round's model into the store, once for all workers, and inform them of the round."""
        if self._model is None or self._model[0] != opening.model:
            self._model = opening.model, ray.put(_bytes_of(opening.model))
        self.openings[opening.key] = opening, self._model[1]
        for link in self.links:
            self._open_on(link, opening.key)

    def drop(self, run: str, through: tuple[int, int]) -> None:
        """Make the workers forget a run's rounds up to this attempt."""
        self.openings = {
            key: (opening, model)
            for key, (opening, model) in self.openings.items()
            if key[0] != run or not opening.ends_with(through)
        }
        for link in self.links:
            link.call("drop", run, through)

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Make the workers forget updates; see ``TaskRunner.forget``."""
        for link in self.links:
            link.call("forget", run, through, keep)

    def lose(self, link: Link, why: Exception) -> bool:
        """Handle a lost worker: end the rest of it and start another; return False if the loss was known."""
        if link not in self.links:
            return False
        self.links.remove(link)
        link.end()
        log.warning("%s is lost; its updates are recomputed: %s", link.name, why)
        replacement = self._made()
        self._starting.add(replacement)
        self._in_background(self._start(replacement))
        return True

    async def close(self) -> None:
        """End every worker; participants have ``CLOSE_S`` to close.

        Workers that are starting are ended once they have started: Ray can lose the kill of a worker whose process has
        no actor yet, and that process then holds its processors until the script ends.
        """
        starting = tuple(self._starting)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        closing = [*(link.call("close") for link in self.links), *(link.begun for link in starting)]
        if closing:
            await asyncio.to_thread(ray.wait, closing, num_returns=len(closing), timeout=CLOSE_S)
        _end([*self.links, *starting])
        self.links.clear()

    def _first(self, wanted: int) -> list[Link]:
        links = [self._made() for _ in range(wanted)]
        lost: Mapping[Link, LostError] = {}
        try:
            for _ in range(TRIES):
                lost = self._wait_for(links)
                if not lost:
                    return links
                _end(lost)  # there may be a process that could not read its settings
                links = [self._made() if link in lost else link for link in links]
        except BaseException:
            _end(links)
            raise
        _end(links)
        (name, why), *_ = ((link.name, error) for link, error in lost.items())
        raise SetupError(f"workers have ended {TRIES} times before their first task; {name}: {why}")

    def _wait_for(self, links: Sequence[Link]) -> Mapping[Link, LostError]:
        """Wait until all have started; return those lost meanwhile, with a node that was just ending."""
        begun, start_s = [link.begun for link in links], self._workers.start_s
        ready, _ = ray.wait(begun, num_returns=len(begun), timeout=start_s)
        if len(ready) < len(begun):
            raise SetupError(
                f"{len(ready)} of {len(begun)} workers have started on Ray within {start_s:g} s; each needs "
                f"{self._workers.needs}, and the cluster has {resources()}: lower count"
            )
        lost = {}
        for link in links:
            try:
                link.node = answer_now(link.begun)
            except LostError as error:
                lost[link] = error
        return lost

    def _made(self) -> Link:
        return Link(f"worker-{next(self._numbers)}", self._setup, self._workers)

    async def _start(self, link: Link) -> None:
        """Start a replacement for a lost worker. The others continue meanwhile, even if there is no room for it."""
        try:
            await self._started(link)
        except (LostError, SimulationError) as error:
            link.end()
            log.warning("%s could not be started, %d workers continue: %s", link.name, len(self.links), error)
        else:
            self.links.append(link)
            for key in self.openings:
                self._open_on(link, key)
        finally:
            self._starting.remove(link)
        self.changed()

    async def _started(self, link: Link) -> None:
        start_s = self._workers.start_s
        ready, _ = await asyncio.to_thread(ray.wait, [link.begun], timeout=start_s)
        if not ready:
            raise LostError(f"not started within {start_s:g} s")
        link.node = await answer(link.begun)

    def _open_on(self, link: Link, key: Key) -> None:
        self._in_background(self._await_opened(link, link.call("open", *self.openings[key])))

    async def _await_opened(self, link: Link, opened: Ref) -> None:
        try:
            await answer(opened)
        except LostError as error:
            if self.lose(link, error):
                self.changed()
        except SimulationError as error:
            self.failed(error)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _end(links: Iterable[Link]) -> None:
    for link in links:
        link.end()


def _nothing(*_: object) -> None:
    pass


def _stored(setup: Setup) -> ray.ObjectRef[Setup]:
    """Put the workers' common settings into Ray's store, once.

    Raises:
        SetupError: if the factory cannot be sent to another process; names the part that cannot.
    """
    try:
        return ray.put(setup)
    except TypeError as error:
        raise SetupError(
            "the factory of participants cannot be sent to workers on Ray: define it, and what it refers to, at the "
            "top of a module, and open files, locks, connections and models inside of it; or use worker processes "
            f"(workers=4), which need not be sent anything\n{error}"
        ) from error


def _bytes_of(model: Path) -> npt.NDArray[np.uint8]:
    return np.asarray(np.memmap(model, np.uint8, "r"))
