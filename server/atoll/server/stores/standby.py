"""A standby: it waits while another server writes the database, and takes over when that server fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

from atoll.server.buckets.errors import BucketUnavailableError
from atoll.server.errors import SetupError
from atoll.server.stores import dialects, schema_version
from atoll.server.stores.database_clock import warn_of_skew
from atoll.server.stores.errors import StoreUnavailableError
from atoll.server.stores.server_turns import HOLDER, DatabaseTakenError, WorkPlace, find_work_place

if TYPE_CHECKING:
    from psycopg import Connection as PostgresConnection

T = TypeVar("T")
STANDBY_NAME = "atoll standby "
SERVER_NAME = "atoll server "
"""Prefixes of the names of servers' connections, which PostgreSQL shows in ``pg_stat_activity``."""
_LOOK_S = 0.25
"""Seconds between two checks of the other server."""
_LATE_S = 10.0
"""Seconds without an answer of the database after which a standby reports this, once."""
_END = f"SELECT pg_terminate_backend(h.pid) FROM ({HOLDER}) h WHERE h.pid = :pid AND h.since = :since"  # noqa: S608
_OTHERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE :name "
    "AND pid <> :own"
)
_BLIND = (
    "the database does not show this server whether that one fails: use the same account, and leave track_activities on"
)


class StandbyEndedError(SetupError):
    """The server was stopped while it was a standby."""

    def __init__(self) -> None:
        super().__init__("server.standby", "stopped while another server was active", "start it again to stand by")


@dataclass(frozen=True)
class Holder:
    """The connection of the server that writes.

    Attributes:
        pid: PostgreSQL's process.
        name: the server's name, host:port; the program's name if it is not a server.
        since: when the connection was opened, by the database server's clock.
        silent_s: seconds since it last ran a statement; None if this account may not see that.
    """

    pid: int
    name: str
    since: object
    silent_s: float | None


def standing_by(connection: Connection, *, apart_from: int = 0) -> int:
    """Number of standbys at a connection's database, except that with the PostgreSQL process ``apart_from``."""
    return int(connection.execute(text(_OTHERS), {"name": f"{STANDBY_NAME}%", "own": apart_from}).scalar_one())


class Standby:
    """Waits until a server may begin its turn.

    Args:
        name: of this server, host:port.
        silence_s: seconds without a statement after which the other server counts as failed.
        report: called in the waiting thread with each new message about the wait.
        returns: whether this server was active before. If so, it also waits for a database or bucket that does not
            answer, which is otherwise an error.
        found: called in the waiting thread with the addresses of the active server, whenever they are new.
    """

    def __init__(
        self,
        name: str,
        silence_s: float,
        report: Callable[[str], None],
        *,
        returns: bool = False,
        found: Callable[[WorkPlace], None] = lambda _: None,
    ) -> None:
        self._name = name
        self._silence_s = silence_s
        self._report = report
        self._returns = returns
        self._found = found
        self._place: WorkPlace | None = None
        self._said = ""
        self._answered = 0.0
        self._seen: Holder | None = None
        self._pid = 0
        self._ended = threading.Event()

    @property
    def server_name(self) -> str:
        """The name of the writer's connection."""
        return SERVER_NAME + self._name

    def others(self, connection: Connection) -> int:
        """Number of other standbys at a connection's database."""
        return standing_by(connection, apart_from=self._pid)  # it may still be counted

    def end(self) -> None:
        """Stop waiting: ``begin`` raises."""
        self._ended.set()

    def opened(self, opening: Callable[[], T]) -> T:
        """Open a bucket.

        Raises:
            StandbyEndedError: if ``end`` was called.
            BucketUnavailableError: if it does not answer, and this server was not active before.
        """
        while True:
            try:
                return opening()
            except BucketUnavailableError as error:
                if not self._returns:
                    raise
                self._say(error.detail.message)
                self._pause(4 * _LOOK_S)

    def begin(self, engine: Engine, *, in_use: Callable[[], None] = lambda: None) -> None:
        """Open the writer's connection of a PostgreSQL database, as soon as no other server has one.

        An unreachable database is an error at first. Once another server has been seen, or if this server was active
        before, it is waited for.

        Args:
            engine: the writer's.
            in_use: called before the wait for another server; raises if this server must not wait for it.

        Raises:
            StandbyEndedError: if ``end`` was called.
            SchemaError: if another server has upgraded the database, and this version must no longer use it.
            StoreUnavailableError: if the database cannot be used.
        """
        while True:
            try:
                with engine.connect():
                    return
            except DatabaseTakenError:
                in_use()
                self._wait(engine.url)
            except SQLAlchemyError as error:
                failure = dialects.translate(error, engine.url)
                if not (self._said or (self._returns and isinstance(failure, StoreUnavailableError))):
                    raise failure from error
                self._say(f"the database does not answer: {failure.detail.message}")
                self._pause(4 * _LOOK_S)

    def _wait(self, url: URL) -> None:
        """Return when the writer's lock has been seen free."""
        watching = dialects.standby_engine(url, STANDBY_NAME + self._name)
        self._answered = time.monotonic()
        try:
            while not self._is_free(watching):
                self._pause(_LOOK_S)
        finally:
            watching.dispose()

    def _is_free(self, watching: Engine) -> bool:
        """Check once whether the lock is free; ends the connection of a server that has failed."""
        try:
            with watching.connect() as connection:
                return self._look(connection)
        except SQLAlchemyError as error:
            if time.monotonic() - self._answered > _LATE_S:
                self._say(f"the database does not answer: {dialects.translate(error, watching.url).detail.message}")
        return False

    def _look(self, connection: Connection) -> bool:
        holder = _holder(connection)
        self._pid = cast("PostgresConnection[Any]", connection.connection.dbapi_connection).info.backend_pid
        self._answered = time.monotonic()
        if holder is None:
            return True
        if self._seen is None or holder.pid != self._seen.pid:
            self._seen = holder
            schema_version.require_allowed(connection)
            warn_of_skew(connection)
        if holder.silent_s is None:
            self._say(f"{holder.name} is the active server; {_BLIND}")
        elif holder.silent_s <= self._silence_s:
            self._say(f"{holder.name} is the active server")
            self._look_for_place(connection)
        else:
            self._say(f"{holder.name} has sent the database nothing for {self._silence_s:g} s: taking over")
            self._replace(connection, holder)
        return False

    def _look_for_place(self, connection: Connection) -> None:
        place = find_work_place(connection)
        if place is not None and place != self._place:
            self._place = place
            self._found(place)

    def _replace(self, connection: Connection, holder: Holder) -> None:
        try:
            connection.execute(text(_END), {"pid": holder.pid, "since": holder.since})
        except ProgrammingError as error:
            said = str(error.orig).partition("\n")[0]
            self._say(f"{holder.name} has failed, and this database account may not end its connection: {said}")

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._report(sentence)

    def _pause(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise StandbyEndedError


def _holder(connection: Connection) -> Holder | None:
    """The connection that holds the writer's lock; None if none does."""
    row = connection.execute(text(HOLDER)).first()
    if row is None:
        return None
    name = str(row.name or "another program")
    return Holder(row.pid, name.removeprefix(SERVER_NAME), row.since, row.silent_s)
