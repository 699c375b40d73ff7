"""Tasks that wait for a worker: the longest first, and if possible where the participant's object is kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

from atoll.simulation.tasks import Outcome, TaskRequest
from atoll.simulation.worker_pool import Key

LARGEST_BATCH = 64
BATCH_S = 0.25
"""Seconds that a batch is predicted to take at most, unless one task takes longer: a lost worker loses its batches."""


@dataclass(eq=False)
class QueuedTask:
    """A task that is waiting or in work.

    Attributes:
        done: gets what became of it.
        awaited: whether a caller waits for the outcome.
        alone: whether it is done in a batch of its own.
    """

    key: Key
    request: TaskRequest
    done: asyncio.Future[Outcome]
    awaited: bool = False
    alone: bool = False

    @property
    def at(self) -> tuple[Key, str]:
        """Identifies the task."""
        return self.key, self.request.participant


class TaskQueue:
    """The tasks that no worker has begun, and how long each participant took before."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedTask] = deque()
        self._took_s: dict[str, float] = {}
        self._sum_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, requests: Sequence[TaskRequest]) -> list[QueuedTask]:
        """Queue tasks of a round, the longest first, so that no worker is left with a long one at the end."""
        loop = asyncio.get_running_loop()
        tasks = [QueuedTask(key, request, loop.create_future()) for request in requests]
        self._waiting.extend(sorted(tasks, key=lambda task: -self._predicted_s(task)))
        return tasks

    def again(self, task: QueuedTask) -> None:
        """Put a task whose worker was lost to the front, in a batch of its own: it may be what ended the worker."""
        task.alone = True
        self._waiting.appendleft(task)

    def took(self, participant: str, seconds: float) -> None:
        """A participant's task has taken so long."""
        self._sum_s += seconds - self._took_s.get(participant, 0.0)
        self._took_s[participant] = seconds

    def batch(self, participants: Container[str], workers: int) -> list[QueuedTask]:
        """Take tasks for one of ``workers`` workers, which has these participants; empty if none wait.

        Batches shrink as the queue does, so that all workers end at about the same time. Until a task is done, and its
        duration known, a batch is one task.
        """
        taken: list[QueuedTask] = []
        room, seconds = min(LARGEST_BATCH, max(1, len(self._waiting) // (2 * workers))), 0.0
        while self._waiting and len(taken) < room:
            task = self._next(participants, 2 * workers)
            seconds += self._predicted_s(task)
            if taken and (task.alone or seconds > BATCH_S):
                self._waiting.appendleft(task)
                break
            taken.append(task)
            if task.alone:
                break
        return taken

    def drop(self, run: str, through: tuple[int, int]) -> None:
        """Forget a run's tasks of rounds up to this attempt that are not awaited."""
        self._waiting = deque(
            task for task in self._waiting if task.awaited or task.key[0] != run or task.key[1:] > through
        )

    def clear(self) -> list[QueuedTask]:
        """Take every task out."""
        taken, self._waiting = list(self._waiting), deque()
        return taken

    def _next(self, participants: Container[str], look: int) -> QueuedTask:
        """The first task, or one of the first whose participant the worker has."""
        for place in range(min(look, len(self._waiting))):
            task = self._waiting[place]
            if task.request.participant in participants:
                del self._waiting[place]
                return task
        return self._waiting.popleft()

    def _predicted_s(self, task: QueuedTask) -> float:
        mean_s = self._sum_s / len(self._took_s) if self._took_s else 1.0
        return self._took_s.get(task.request.participant, mean_s)
