"""Decides which server writes a PostgreSQL database: one at a time, and never a server whose turn is over.

The writer's only connection holds an advisory lock as long as it is open. The database stores the number of the turn,
which fences off servers of earlier turns. Other servers of the federation are standbys: they wait until the lock is
free, or until its holder has sent no statement for some time (``process.heartbeat`` sends two a second), and then end
the holder's connection. All times are the database server's, so no clocks are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection

from atoll.server.stores.errors import StoreUnavailableError

if TYPE_CHECKING:
    from psycopg import Connection as PostgresConnection

SERVER_LOCK = 0x61746F6C6D
"""Key of the advisory lock that the server's writing connection holds: 97 and 1953459309 in ``pg_locks``."""
_LOCK_PATIENCE_S = 3
_ADDRESSES = "server_addresses"
HOLDER = """
SELECT a.pid AS pid, a.application_name AS name, a.backend_start AS since,
       CASE WHEN a.state LIKE 'idle%' THEN extract(epoch FROM clock_timestamp() - a.state_change)::float8
            WHEN a.state <> 'disabled' THEN 0.0 END AS silent_s
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid = 97 AND l.objid = 1953459309
"""
"""The connection that holds the lock. ``silent_s`` is the time since its last statement; null if its account hides this
from ours, or the setting ``track_activities`` is off."""


class DatabaseTakenError(StoreUnavailableError):
    """Another server is writing the database."""

    def __init__(self, place: str) -> None:
        super().__init__(
            "another server uses the database",
            "stop it first, or give this server a database of its own; if its machine was lost, wait half a minute",
            where=place,
        )


class TurnOverError(StoreUnavailableError):
    """Another server has had a turn at the database since this one lost its connection."""

    def __init__(self, place: str) -> None:
        super().__init__(
            "another server has used the database since this one lost its connection",
            "stop this server; start it again if it should be active",
            where=place,
        )


class DatabaseMovedError(StoreUnavailableError):
    """``atoll server migrate`` has copied the database to another place."""

    def __init__(self, place: str) -> None:
        super().__init__(
            "it was moved to another place with `atoll server migrate`, and runs went on there",
            "create this server's data directory again with `atoll server standby`; if the moved copy was never used, "
            "DELETE FROM server_turns makes this one usable again",
            where=place,
        )


def retire(engine: Engine) -> None:
    """Make every later server refuse the database of this writer's engine; does nothing for SQLite."""
    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            connection.execute(text("UPDATE server_turns SET number = -1"))


@dataclass(frozen=True, slots=True)
class WorkPlace:
    """The addresses at which the other servers of a database reach the active server.

    Attributes:
        turn: the number of its turn.
        name: a name in its certificate.
        main: host:port of its main port.
        enrolment: host:port of its enrolment port.
    """

    turn: int
    name: str
    main: str
    enrolment: str


def find_work_place(connection: Connection) -> WorkPlace | None:
    """The addresses of the active server; None until it serves, or if its version does not publish them."""
    if connection.execute(text("SELECT to_regclass(:name)"), {"name": _ADDRESSES}).scalar_one() is None:
        return None
    query = f"SELECT a.number AS turn, name, main, enrolment FROM {_ADDRESSES} a JOIN server_turns t USING (number)"  # noqa: S608
    row = connection.execute(text(query)).first()
    return None if row is None else WorkPlace(row.turn, row.name, row.main, row.enrolment)


class ServerTurn:
    """One server's turn at a database: begins with its first connection, ends when another server gets one.

    The lock alone would let a server that lost it write again after the other server has ended, based on outdated
    state. So each turn has a number, which the database stores.

    Attributes:
        over: whether another server has had a later turn.
    """

    def __init__(self) -> None:
        self._place = ""
        self._number: int | None = None
        self._pid: int | None = None
        self.over = False

    def is_active(self, connection: Connection) -> bool:
        """Whether the writer's connection is running a statement, as seen from another connection."""
        own = text(f"{HOLDER} AND a.pid = :pid AND a.state = 'active'")
        return connection.execute(own, {"pid": self._pid}).first() is not None

    def announce(self, connection: Connection, name: str, main_port: int, enrol_port: int, host: str) -> WorkPlace:
        """Publish this server's addresses to standbys, in a transaction of the writer.

        Args:
            connection: the writer's.
            name: a name in this server's certificate.
            main_port: number of its main port.
            enrol_port: number of its enrolment port.
            host: host at which other servers reach it; empty for the address that the database sees.
        """
        seen = text("SELECT host(inet_client_addr())")
        host = host or connection.execute(seen).scalar_one() or "127.0.0.1"  # None over a Unix socket
        host = f"[{host}]" if ":" in host else host
        place = WorkPlace(self._number or 0, name, f"{host}:{main_port}", f"{host}:{enrol_port}")
        connection.execute(
            text(
                f"CREATE TABLE IF NOT EXISTS {_ADDRESSES} (place integer PRIMARY KEY, number bigint NOT NULL, "
                "name text NOT NULL, main text NOT NULL, enrolment text NOT NULL)"
            )
        )
        row = {"number": place.turn, "name": place.name, "main": place.main, "enrolment": place.enrolment}
        connection.execute(
            text(
                f"INSERT INTO {_ADDRESSES} VALUES (1, :number, :name, :main, :enrolment) ON CONFLICT (place) DO UPDATE "  # noqa: S608
                "SET number = :number, name = :name, main = :main, enrolment = :enrolment"
            ),
            row,
        )
        return place

    def begin_with(self, engine: Engine, place: str) -> None:
        """Lock the database and check the turn on each new connection of an engine; errors show ``place``."""
        self._place = place
        event.listen(engine, "connect", lambda connection, _entry: self._enter(connection))

    def _enter(self, connection: DBAPIConnection) -> None:
        try:
            self._refuse_if_over()
            pid = self._require_own_session(connection)
            self._require_turn(connection)  # first, since waiting for the lock would be useless
            self._lock(connection)
            self._count(connection)
            self._pid = pid
        except BaseException:
            connection.close()
            raise

    def _refuse_if_over(self) -> None:
        if self.over:
            raise TurnOverError(self._place)

    def _require_own_session(self, connection: DBAPIConnection) -> int:
        """Check that this connection has its own PostgreSQL process, and return its pid."""
        pid = _one_row(connection, "SELECT pg_backend_pid()")
        if pid != cast("PostgresConnection[Any]", connection).info.backend_pid:
            raise StoreUnavailableError(
                "a connection pooler is in front of the database, but the server's lock needs a dedicated connection",
                "name PostgreSQL itself (host and port) instead of PgBouncer or the like",
                where=self._place,
            )
        return int(pid)

    def _lock(self, connection: DBAPIConnection) -> None:
        """Take the server's lock; the database holds it until the connection ends in any way.

        A killed server's connection ends a moment after it. If the network was lost, the database may keep this
        server's earlier connection, so the server ends that connection first.
        """
        from psycopg.errors import LockNotAvailable  # noqa: PLC0415 - SQLite's users need not have it

        cursor = connection.cursor()
        if self._pid is not None:
            cursor.execute(f"SELECT pg_terminate_backend(pid) FROM ({HOLDER}) h WHERE pid = {self._pid}")  # noqa: S608
        try:
            cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_PATIENCE_S}s'")
            cursor.execute(f"SELECT pg_advisory_lock({SERVER_LOCK})")
            connection.rollback()  # ends the transaction; the lock is the session's
        except LockNotAvailable:
            connection.rollback()
            self._require_turn(connection)
            raise DatabaseTakenError(self._place) from None

    def _count(self, connection: DBAPIConnection) -> None:
        self._require_turn(connection)
        if self._number is None:
            cursor = connection.cursor()
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS server_turns (place integer PRIMARY KEY, number bigint NOT NULL)"
            )
            self._number = _one_row(
                connection,
                "INSERT INTO server_turns VALUES (1, 1) ON CONFLICT (place) DO UPDATE SET number = "
                "server_turns.number + 1 WHERE server_turns.number >= 0 RETURNING number",
            )
            if self._number is None:
                raise DatabaseMovedError(self._place)
        connection.commit()

    def _require_turn(self, connection: DBAPIConnection) -> None:
        if self._number is not None and _one_row(connection, "SELECT number FROM server_turns") != self._number:
            self.over = True
        self._refuse_if_over()


def _one_row(connection: DBAPIConnection, query: str) -> Any:
    """The value in the only row of a query's result."""
    cursor = connection.cursor()
    cursor.execute(query)
    row = cursor.fetchone()
    return None if row is None else row[0]
