"""The server's database and executors without threads: everything runs in the calling thread.

A simulation does one thing at a time in its own process. Handing each small write to a thread and back would cost more
than the write, and real time would pass between request and answer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from atoll.server.stores import Reader, Writer

T = TypeVar("T")
P = ParamSpec("P")


class InlineExecutor(Executor):
    """Runs a function when it is submitted."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See ``Executor``."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - handed to the caller, as an executor does
            future.set_exception(error)
        return future


class InlineWriter(Writer):
    """A writer whose transactions are committed before ``run`` and ``submit`` return."""

    def submit(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See ``Writer``."""
        return self.perform(lambda connection: work(connection, *args, **kwargs))

    async def run(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See ``Writer``."""
        return self.submit(work, *args, **kwargs).result()


class InlineReader(Reader):
    """A reader that reads in the caller's thread."""

    async def run(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See ``Reader``."""
        return self.submit(work, *args, **kwargs).result()

    def submit(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See ``Reader``."""
        return InlineExecutor().submit(self.read, lambda connection: work(connection, *args, **kwargs))


Work = Callable[[Connection], Any]
