"""The tasks and timers of one run, by name: at most one of each, none lost, none left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from atoll.server.rounds import RoundKey

Body = Callable[[], Coroutine[Any, Any, None]]
"""Makes the coroutine that a task runs."""


@dataclass(frozen=True, slots=True)
class TaskName:
    """Names a task by its kind, its attempt at a round (None: the whole run), and the item that it works on."""

    kind: str
    key: RoundKey | None = None
    what: str = ""

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.kind, self.key, self.what) if part)


class Tasks:
    """Starts tasks and timers. Only the event loop touches it.

    Args:
        label: names the run in the tasks' names.
        crashed: called with each task that ends with an error.
    """

    def __init__(self, label: str, crashed: Callable[[TaskName, BaseException], None]) -> None:
        self._label = label
        self._crashed = crashed
        self._tasks: dict[TaskName, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, name: TaskName, body: Body, *, replaces: bool = False) -> None:
        """Start a task unless it is under way; with ``replaces``, cancel that one and start when it has ended."""
        current = self._tasks.get(name)
        if current is not None:
            if not replaces:
                return
            current.cancel()
        task = asyncio.create_task(_after(current, body), name=f"{self._label} {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def under_way(self, name: TaskName) -> bool:
        """Whether a task was started and has not ended."""
        return name in self._tasks

    def after(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        """Call in ``delay_s`` seconds of a monotonic clock; replaces an earlier timer of the same name."""
        self.cancel_timer(name)

        def fire() -> None:
            del self._timers[name]
            call()

        self._timers[name] = asyncio.get_running_loop().call_later(max(0.0, delay_s), fire)

    def due_in_s(self, name: str) -> float | None:
        """Seconds until the timer fires; None if there is no timer of that name."""
        timer = self._timers.get(name)
        return None if timer is None else max(0.0, timer.when() - asyncio.get_running_loop().time())

    def cancel_timer(self, name: str) -> None:
        """Forget the timer of that name, if there is one."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def cancel_timers(self) -> None:
        """Forget every timer."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def end(self, unwanted: Callable[[TaskName], bool]) -> None:
        """Cancel these tasks and wait until they have ended."""
        tasks = self._apart_from_caller(unwanted)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ended(self, awaited: Callable[[TaskName], bool]) -> None:
        """Wait until these tasks have ended, without cancelling them."""
        await asyncio.gather(*self._apart_from_caller(awaited), return_exceptions=True)

    async def close(self) -> None:
        """Cancel everything and wait until it has ended."""
        self.cancel_timers()
        await self.end(lambda _: True)

    def _apart_from_caller(self, chosen: Callable[[TaskName], bool]) -> list[asyncio.Task[None]]:
        caller = asyncio.current_task()
        return [task for name, task in self._tasks.items() if task is not caller and chosen(name)]

    def _ended(self, name: TaskName, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(name, error)


async def _after(current: asyncio.Task[None] | None, body: Body) -> None:
    if current is not None:
        await asyncio.wait({current})
    await body()
