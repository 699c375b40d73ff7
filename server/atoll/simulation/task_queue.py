"""Queue tasks for workers: the longest first, preferably to the worker that keeps the participant's object."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

from atoll.simulation.tasks import Outcome, RoundOverError, TaskRequest
from atoll.simulation.worker_pool import Key

LARGEST_BATCH = 64
BATCH_S = 0.25
"""Maximum predicted seconds of a batch, unless one task takes longer: a lost worker loses its batches."""
_UNKNOWN_S = 1.0


@dataclass(eq=False, slots=True)
class QueuedTask:
    """A task that is waiting or running.

    Attributes:
        done: its result: the node that holds the update, and the outcome.
        awaited: whether a caller waits for the outcome.
        alone: whether it runs in its own batch.
    """

    key: Key
    request: TaskRequest
    done: asyncio.Future[tuple[str, Outcome]]
    awaited: bool = False
    alone: bool = False

    @property
    def at(self) -> tuple[Key, str]:
        """Identifies the task."""
        return self.key, self.request.participant

    def finish(self, node: str, outcome: Outcome) -> None:
        """Set the result."""
        if not self.done.done():
            self.done.set_result((node, outcome))

    def give_up(self, why: Exception) -> None:
        """Set an error as the result."""
        if not self.done.done():
            self.done.set_exception(why)
            self.done.exception()  # marks the error as retrieved: perhaps no task awaits it


class TaskQueue:
    """The tasks that no worker has begun, and the last duration of each participant."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedTask] = deque()
        self._took_s: dict[str, float] = {}
        self._sum_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, requests: Sequence[TaskRequest]) -> list[QueuedTask]:
        """Queue tasks of a round, longest first, so that no worker is left with a long one at the end."""
        loop = asyncio.get_running_loop()
        tasks = [QueuedTask(key, request, loop.create_future()) for request in requests]
        self._waiting.extend(sorted(tasks, key=lambda task: -self._predicted_s(task)))
        return tasks

    def again(self, task: QueuedTask) -> None:
        """Put a task whose worker was lost at the front, in its own batch, because it may have ended the worker."""
        task.alone = True
        self._waiting.appendleft(task)

    def took(self, participant: str, seconds: float) -> None:
        """Record the duration of a participant's task."""
        self._sum_s += seconds - self._took_s.get(participant, 0.0)
        self._took_s[participant] = seconds

    @property
    def mean_s(self) -> float:
        """Predicted seconds of a task, from the participant's last one; 0 until one is known."""
        return self._sum_s / len(self._took_s) if self._took_s else 0.0

    def batch(self, participants: Container[str], workers: int) -> list[QueuedTask]:
        """Take tasks for one of ``workers`` workers, which has these participants; empty if none wait.

        Batches shrink as the queue does, so that all workers end at about the same time. Until a task is done, and its
        duration known, a batch is one task.
        """
        taken: list[QueuedTask] = []
        room, seconds = min(LARGEST_BATCH, max(1, len(self._waiting) // (2 * workers))), 0.0
        while self._waiting and len(taken) < room:
            task = self.next(participants, workers)
            seconds += self._predicted_s(task)
            if taken and (task.alone or seconds > BATCH_S):
                self._waiting.appendleft(task)
                break
            taken.append(task)
            if task.alone:
                break
        return taken

    def drop(self, run: str, through: tuple[int, int]) -> None:
        """Cancel a run's tasks of rounds up to this attempt that are not awaited."""
        waiting, self._waiting = self._waiting, deque()
        for task in waiting:
            if task.awaited or task.key[0] != run or task.key[1:] > through:
                self._waiting.append(task)
            else:
                task.give_up(RoundOverError("its round is over"))

    def clear(self) -> list[QueuedTask]:
        """Take every task out."""
        taken, self._waiting = list(self._waiting), deque()
        return taken

    def next(self, participants: Container[str], workers: int) -> QueuedTask:
        """Take the first task, or one near the front whose participant this worker has, for one of ``workers``."""
        for place in range(min(2 * workers, len(self._waiting))):
            task = self._waiting[place]
            if task.request.participant in participants:
                del self._waiting[place]
                return task
        return self._waiting.popleft()

    def _predicted_s(self, task: QueuedTask) -> float:
        return self._took_s.get(task.request.participant, self.mean_s if self._took_s else _UNKNOWN_S)
