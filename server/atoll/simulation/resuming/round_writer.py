"""A database writer whose writes become durable together, once a round."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from atoll.server.stores.dialects import translate
from atoll.simulation.inline import InlineReader, InlineWriter

T = TypeVar("T")


class RoundWriter(InlineWriter):
    """Each write has a savepoint in one transaction, which ``commit`` ends. Uncommitted writes are never stored."""

    _connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The single connection; reads over it see uncommitted writes."""
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def perform(self, work: Callable[[Connection], T]) -> Future[T]:
        """See ``Writer``; the work is rolled back if it fails, and not durable yet if it succeeds."""
        future: Future[T] = Future()
        try:
            with self.connection.begin_nested():
                result = work(self.connection)
        except SQLAlchemyError as error:
            future.set_exception(translate(error, self._engine.url))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            future.set_exception(error)
        else:
            future.set_result(result)
        return future

    def commit(self) -> None:
        """Make all writes durable.

        Raises:
            StoreUnavailableError: if that fails.
        """
        try:
            self.connection.commit()
        except SQLAlchemyError as error:
            raise translate(error, self._engine.url) from error

    def close(self) -> None:
        """See ``Writer``; discards uncommitted writes."""
        if self._connection is not None:
            self._connection.close()
        super().close()


class RoundReader(InlineReader):
    """Reads over the connection of a ``RoundWriter``."""

    writer: RoundWriter
    """Set before the first read."""

    def read(self, work: Callable[[Connection], T]) -> T:
        """See ``Reader``; it sees every write, committed or not."""
        try:
            return work(self.writer.connection)
        except SQLAlchemyError as error:
            raise translate(error, self._engine.url) from error
