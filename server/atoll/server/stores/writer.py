"""The database writer: many small writes share one commit.

Callers submit functions. A thread takes all waiting functions (up to a limit), runs each in its own savepoint (a single
one needs none), commits once, and only then resolves the callers' futures. A write is therefore durable when its caller
gets the result, a failing function undoes only its own work, and a hundred concurrent writes cost one fsync (group
commit).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Transaction
from sqlalchemy.exc import SQLAlchemyError

from atoll.server.errors import ServerError, StorageError
from atoll.server.stores.dialects import translate
from atoll.server.stores.errors import CommitError, StoreBusyError, StoreClosedError, StoreFullError

T = TypeVar("T")
P = ParamSpec("P")
QUEUE_LIMIT = 8192  # maximum number of waiting functions
BATCH_LIMIT = 512  # functions per commit, which bounds how long the first waits for the last


class _Job(Generic[T]):
    """One function that the writer runs."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self.future: Future[T] = Future()
        self._work = work
        self._outcome: Callable[[], None] | None = None

    def perform(self, connection: Connection, undone: Transaction | None = None) -> None:
        """Run the function; its outcome waits for the commit.

        Args:
            connection: has an open transaction.
            undone: the transaction to roll back if the function fails; None for its own savepoint.

        Raises:
            SQLAlchemyError: if the rollback fails too; the whole batch is then lost.
        """
        transaction = undone or connection.begin_nested()
        try:
            result = self._work(connection)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            failure = translate(error, connection.engine.url) if isinstance(error, SQLAlchemyError) else error
            if failure is not error:
                failure.__cause__ = error
            _undo(connection, transaction, error)
            self._outcome = lambda: self.future.set_exception(failure)
        else:
            if undone is None:
                transaction.commit()
            self._outcome = lambda: self.future.set_result(result)

    def resolve(self) -> None:
        """Resolve the caller's future after the commit."""
        if self._outcome is not None:
            self._outcome()


class Writer:
    """Runs functions on the database's one writing connection, many per commit. Thread-safe."""

    def __init__(self, engine: Engine, *, queue_limit: int = QUEUE_LIMIT, batch_limit: int = BATCH_LIMIT) -> None:
        self._engine = engine
        self._queue_limit = queue_limit
        self._batch_limit = batch_limit
        self._jobs: deque[_Job[Any]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._watcher: Callable[[int, float, bool], None] = _unwatched
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of functions that wait for the next commit."""
        return len(self._jobs)

    def watch(self, watcher: Callable[[int, float, bool], None]) -> None:
        """Observe each commit, in the writer's thread: number of functions, seconds, and whether it failed."""
        self._watcher = watcher

    async def run(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work(connection, *args, **kwargs)`` in a transaction; returns when its effect is durable.

        ``work`` runs in the writer's thread and must only touch the database; other functions may share its commit. If
        the caller is cancelled before ``work`` has begun, ``work`` is not run; later, it completes and its effect
        stays.

        Raises:
            StoreBusyError: if too many functions wait.
            StoreClosedError: if the store is closed.
            CommitError: if the commit failed.
            StoreUnavailableError, RecordConflictError: if the database refuses the statements of ``work``.
            Exception: what ``work`` raises; nothing is stored then.
        """
        return await asyncio.wrap_future(self.submit(work, *args, **kwargs))

    def submit(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Like ``run``, for callers in threads: the future resolves when the effect is durable.

        Raises:
            StoreBusyError: if too many functions wait.
            StoreClosedError: if the store is closed.
        """
        job = _Job(lambda connection: work(connection, *args, **kwargs))
        with self._changed:
            if self._closed:
                raise StoreClosedError
            if len(self._jobs) >= self._queue_limit:
                raise StoreBusyError(f"{len(self._jobs)} writes are waiting for the database")
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def perform(self, work: Callable[[Connection], T]) -> Future[T]:
        """Run a function and commit in the caller's thread, if no other thread uses the writer."""
        job = _Job(work)
        job.future.set_running_or_notify_cancel()
        self._commit([job])
        return job.future

    def close(self) -> None:
        """Refuse new work, finish waiting work, and close the connection."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._engine.dispose()

    def _serve(self) -> None:
        while batch := self._take():
            self._commit(batch)

    def _take(self) -> list[_Job[Any]]:
        """The jobs of the next commit, without cancelled ones; empty once the writer is closed and no jobs are left."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                taken = [self._jobs.popleft() for _ in range(min(len(self._jobs), self._batch_limit))]
                wanted = [job for job in taken if job.future.set_running_or_notify_cancel()]
                if wanted or (self._closed and not self._jobs):
                    return wanted

    def _commit(self, batch: list[_Job[Any]]) -> None:
        began = time.monotonic()
        try:
            with self._engine.connect() as connection, connection.begin() as transaction:
                alone = transaction if len(batch) == 1 else None
                for job in batch:
                    job.perform(connection, alone)
        except BaseException as error:  # noqa: BLE001 - every caller hears of it; the thread must live on
            self._watcher(len(batch), time.monotonic() - began, True)
            self._fail(batch, error)
            return
        self._watcher(len(batch), time.monotonic() - began, False)
        for job in batch:
            job.resolve()

    def _fail(self, batch: list[_Job[Any]], error: BaseException) -> None:
        said = error if isinstance(error, ServerError) else None
        if isinstance(error, SQLAlchemyError):
            said = translate(error, self._engine.url)
        for job in batch:
            failure = _not_stored(said, error)
            failure.__cause__ = error
            job.future.set_exception(failure)


def _unwatched(functions: int, seconds: float, failed: bool) -> None:
    """Do nothing: the default observer."""


def _undo(connection: Connection, done: Transaction, cause: BaseException) -> None:
    """Roll back a job's work; raises if ``cause`` made the database abort the whole transaction."""
    try:
        done.rollback()
    except SQLAlchemyError as error:
        raise (cause if isinstance(cause, SQLAlchemyError) else error) from None
    if connection.invalidated:
        raise cause


def _not_stored(said: ServerError | None, error: BaseException) -> StorageError:
    """The error of a failed commit; a new object for each caller."""
    if isinstance(said, StoreFullError):
        return StoreFullError(said.detail.message, where=said.where)
    if said is None:
        return CommitError(f"not stored: {type(error).__name__}", "see the server's log", where=repr(error))
    return CommitError(f"not stored: {said.detail.message}", said.detail.remedy, where=said.where)
