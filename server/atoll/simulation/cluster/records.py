"""Record which worker holds which update, and the task that recomputes it if the worker is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from atoll.server.ingest.node import FoldItem
from atoll.simulation.cluster.link import Link
from atoll.simulation.tasks import TaskRequest
from atoll.simulation.worker_pool import Key

At = tuple[Key, str]
"""A task: the attempt at a round, and the participant."""
TRIES = 4
"""Maximum number of times that a task is run, when workers are lost with it or after it."""


@dataclass
class _Held:
    request: TaskRequest
    link: Link


class Records:
    """The updates held by workers."""

    def __init__(self) -> None:
        self._held: dict[At, _Held] = {}
        self._lost: Counter[At] = Counter()

    def note(self, at: At, request: TaskRequest, link: Link) -> None:
        """Record that a worker holds an update."""
        self._held[at] = _Held(request, link)

    def lost(self, at: At) -> bool:
        """Record that a task or its update was lost; return whether it may be repeated."""
        self._lost[at] += 1
        return self._lost[at] < TRIES

    def request(self, at: At) -> TaskRequest | None:
        """The task that recomputes an update."""
        held = self._held.get(at)
        return None if held is None else held.request

    def missing(self, items: Iterable[FoldItem], there: Collection[Link]) -> Iterator[FoldItem]:
        """The updates that no worker holds any more."""
        for item in items:
            held = self._held.get(at_of(item))
            if held is None or held.link not in there:
                yield item

    def shares(self, items: Iterable[FoldItem]) -> dict[Link, list[FoldItem]]:
        """The updates by the worker that holds each."""
        found: dict[Link, list[FoldItem]] = {}
        for item in items:
            found.setdefault(self._held[at_of(item)].link, []).append(item)
        return found

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Forget the updates of rounds up to this attempt, except those of the given (round, attempt, participant)."""

        def stays(at: At) -> bool:
            (of_run, *attempt), name = at
            return of_run != run or tuple(attempt) > through or (*attempt, name) in keep

        self._held = {at: held for at, held in self._held.items() if stays(at)}
        self._lost = Counter({at: times for at, times in self._lost.items() if stays(at)})


def at_of(item: FoldItem) -> At:
    """The task that produced an update."""
    return (item.run, item.round, item.attempt), item.participant
