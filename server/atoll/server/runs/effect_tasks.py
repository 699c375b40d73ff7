"""Tasks that perform one run's effects: they are observed, retried, and answered by events."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from atoll.server.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    ServerError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
from atoll.server.privacy.errors import BudgetSpentError
from atoll.server.rounds import BudgetSpent, EffectFailed, Event
from atoll.server.runs.driver import RefusedEventError, RunDriver
from atoll.server.runs.services import Services
from atoll.server.runs.stepping import Also, Answer
from atoll.server.runs.tasks import Body, TaskName, Tasks
from atoll.server.telemetry.context import about
from atoll.server.telemetry.observer import NO_OBSERVER, Observer

T = TypeVar("T")
log = logging.getLogger(__name__)

PATIENCE_S = 3600.0
"""Seconds that workers may refuse an effect before the run fails; for disk and database there is no limit."""
_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 10.0
_FAILING = "fail"
_REPEATED = frozenset({_FAILING, "fold", "drop", "retain", "finish"})
"""Tasks whose failure does not fail the run: the sum folds missing updates, and the next start tidies up."""
_TRANSIENT = (StorageError, UnavailableError)
UNUSABLE = (CorruptDataError, NotFoundError, InvalidRequestError)
"""Errors about an update that no retry makes readable."""


class EffectTasks(Tasks):
    """Tasks that perform the effects of one run, and post the resulting events.

    Args:
        driver: takes events, and has the run's state.
        services: observer, disk and threads.
    """

    def __init__(self, driver: RunDriver, services: Services) -> None:
        super().__init__(driver.run, self.crashed)
        self._driver = driver
        self._services = services
        self._troubles: dict[str, str] = {}

    @property
    def trouble(self) -> str:
        """The task that waits, and the reason; empty if none waits."""
        return "; ".join(f"{what} waits: {why}" for what, why in sorted(self._troubles.items()))

    def waits_for(self, what: str) -> bool:
        """Whether watchers are told that this task waits."""
        return what in self._troubles

    def note_trouble(self, what: str, why: str) -> None:
        """Show watchers why the run waits; an empty ``why`` clears it."""
        before = dict(self._troubles)
        self._troubles.pop(what, None)
        if why:
            self._troubles[what] = why
        if self._troubles != before:
            self._driver.announce()

    def start(self, name: TaskName, body: Body, *, replaces: bool = False) -> None:
        """Like ``Tasks.start``, with the task's purpose in traces and logs."""
        observer = self._observer_of(name)

        async def observed() -> None:
            with (
                about(run=self._driver.run, round=name.key),
                observer.working(self._driver.run, name.kind, name.key, name.what),
            ):
                await body()

        super().start(name, observed, replaces=replaces)

    def note(self, name: TaskName) -> None:
        """Show work that needs no task in the trace."""
        with self._observer_of(name).working(self._driver.run, name.kind, name.key, name.what):
            pass

    def _observer_of(self, name: TaskName) -> Observer:
        """Note that a task has begun; a fold is named after the member whose report it adds."""
        hidden = name.kind == "fold" and self.has_secret_draw
        return NO_OBSERVER if hidden else self._services.observer

    @property
    def has_secret_draw(self) -> bool:
        """Whether logs and traces must not show who is in the round."""
        return self._driver.state.policy.secret_draw

    def post_soon(self, event: Event) -> None:
        """Post an event without waiting for it."""
        name = TaskName("post", getattr(event, "key", None), f"{event.kind} {getattr(event, 'participant', '')}")
        self.start(name, lambda: self.answer(event))

    async def post(self, answer: Answer) -> None:
        """Post an effect's answer outside of the transaction of the event that caused it."""
        try:
            await self.answer(answer.event, answer.also)
        finally:
            answer.cleanup()

    async def answer(self, event: Event, also: Also | None = None) -> None:
        """Post an event, and retry until it is stored: without it the run would stall until the server restarts.

        Raises:
            ServerError: if the event contradicts what is on record.
        """

        async def post() -> None:
            await self._driver.post(event, also)

        try:
            await self.retrying(event.kind, post, patience_s=math.inf)
        except RefusedEventError as error:
            log.debug("run %s: %s not taken: %s", self._driver.run, event.kind, error)

    async def retrying(self, what: str, work: Callable[[], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
        """Retry work while the disk, the database or a worker refuses it; log every refusal.

        Disk and database are retried without limit: an operator repairs them or cancels the run.

        Raises:
            ServerError: for an error that waiting does not solve, or a worker's error that lasts longer than
                ``patience_s``.
        """
        loop, delay_s = asyncio.get_running_loop(), _FIRST_RETRY_S
        until = loop.time() + patience_s
        try:
            while True:
                try:
                    return await work()
                except _TRANSIENT as error:
                    if loop.time() >= until and not isinstance(error, StorageError):
                        raise
                    self._services.observer.retried(what)
                    log.warning(
                        "run %s: %s failed, trying again in %.1f s: %s", self._driver.run, what, delay_s, error.logged
                    )
                    self.note_trouble(what, error.detail.message)
                    if isinstance(error, StorageFullError):
                        await self._services.call(self._services.room.make_room)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_RETRY_S)
        finally:
            self.note_trouble(what, "")

    def crashed(self, name: TaskName, error: BaseException) -> None:
        """Fail the run if the task was for its current round; pause it if its budget is spent."""
        run, known = self._driver.run, isinstance(error, ServerError)  # the message says what is wrong, so no traceback
        said = error.logged if isinstance(error, ServerError) else error
        if isinstance(error, BudgetSpentError):
            log.warning("run %s pauses: %s", run, said, extra={"run": run})
        else:
            shown = TaskName(name.kind, name.key) if self.has_secret_draw else name
            log.error("run %s: %s failed: %s", run, shown, said, exc_info=None if known else error, extra={"run": run})
        live = self._driver.state.round
        if name.kind in _REPEATED or live is None or (name.key is not None and name.key != live.key):
            return
        # Members receive the reason. The text of an unknown error may name paths of this machine: it is only logged.
        reason = f"unexpected {type(error).__name__}; the server's log has more"
        if isinstance(error, ServerError):
            reason = str(error.detail)
        spent = isinstance(error, BudgetSpentError)
        failure = BudgetSpent(live.key, reason) if spent else EffectFailed(live.key, name.kind, reason)
        self.start(TaskName(_FAILING, live.key), lambda: self.answer(failure))
