"""All code that differs between SQLite and PostgreSQL; no other module of the stores depends on the dialect.

SQLite: write-ahead log, ``synchronous=FULL`` (a commit is on disk when it returns), foreign keys on, transactions begun
explicitly (the driver's implicit ones do not cover savepoints). PostgreSQL: read committed for the writer, one snapshot
per read; the writer's connection holds an advisory lock, without which it writes nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import URL, Connection, Engine, Executable, Table, create_engine, event, make_url, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from atoll.server.errors import ServerError, StorageError
from atoll.server.stores.errors import (
    RecordConflictError,
    SchemaError,
    StoreDamagedError,
    StoreFullError,
    StoreUnavailableError,
)
from atoll.server.stores.server_turns import ServerTurn
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

BUSY_TIMEOUT_S = 10.0
_WAL_LIMIT_BYTES = 64 << 20  # the log file is cut back to this after a checkpoint
_SCHEMA_LOCK = 0x61746F6C6C  # "atoll": key of the PostgreSQL advisory lock held while migrating
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq settings with which a lost network is noticed within half a minute."""
_SERVER_PATIENCE = (
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=30000"
)
"""The same settings for the database server, which holds a vanished writer's lock until it notices."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_NO_TEXT = "Could not decode to UTF-8"  # from Python's sqlite3, for a text column; it has no error code
_SECRETS = frozenset({"password", "sslpassword"})
_REMEDIES = {
    sqlite3.SQLITE_READONLY: "make the data directory and its files writable for the server's account",
    sqlite3.SQLITE_CANTOPEN: "check that the data directory exists and that the server's account may write to it",
    sqlite3.SQLITE_PERM: "check the permissions of the data directory",
    sqlite3.SQLITE_IOERR: "check the disk (dmesg, SMART) and that it is not full",
    sqlite3.SQLITE_BUSY: "another process holds the database: make sure that only one server uses this directory",
}
_SERVER_FULL = "53100"
_SERVER_DAMAGED = frozenset({"XX001", "XX002"})
_NOT_ALLOWED = frozenset({"42501", "3F000"})
"""PostgreSQL's SQLSTATE codes for insufficient privilege, and for no schema to create tables in."""
_ALLOW = "let the account own the database, or grant it USAGE and CREATE on the schema"
_CHECK_SERVER = "check that the database server runs, is reachable, has this database and accepts this account"
Rows = Sequence[Mapping[str, Any]]
IsolationLevel = Literal["AUTOCOMMIT", "READ COMMITTED", "REPEATABLE READ"]


def sqlite_url(path: Path) -> URL:
    """The URL of a SQLite database file."""
    return URL.create("sqlite", database=str(path))


def parse_url(url: str) -> URL:
    """Parse the URL of a database: a SQLite file, or PostgreSQL, always with the driver psycopg.

    Raises:
        SchemaError: for any other database or driver, and for a PostgreSQL URL that holds a password: URLs are written
            to files and logs. libpq takes passwords from ``PGPASSWORD`` or a file.
    """
    remedy = "give a PostgreSQL URL such as postgresql://user@host/atoll, or none for the embedded SQLite"
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise SchemaError(f"the database URL cannot be read: {error}", remedy) from None
    if parsed.drivername not in {"sqlite", "postgresql", "postgresql+psycopg"}:
        raise SchemaError(f"database {parsed.drivername!r} is not supported", remedy)
    if parsed.get_backend_name() == "sqlite":
        return parsed
    if parsed.password or not parsed.query.keys().isdisjoint(_SECRETS):
        raise SchemaError(
            f"the URL of database {parsed.database} at {parsed.host} holds a password, and URLs are written to files",
            "leave it out, and give it in $PGPASSWORD, in ~/.pgpass, or in a file that $PGPASSFILE names",
        )
    if not parsed.database:
        raise SchemaError(f"the database URL {shown(parsed)} names no database", remedy)
    return parsed._replace(drivername="postgresql+psycopg", password=None)  # an empty password would be shown as ***


def shown(url: URL) -> str:
    """Return a database's name for messages: the file, or the URL without a password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.set(drivername="postgresql").render_as_string(hide_password=True)


def writer_engine(url: URL, *, turn: ServerTurn | None = None, name: str = "") -> Engine:
    """Return an engine for the one writer.

    Args:
        url: URL of the database.
        turn: with PostgreSQL, exclude the writers of other servers: each connection first takes a lock, and fails with
            a StoreUnavailableError if another server has it. (A data directory with SQLite has its own lock.)
        name: of the connection, shown in PostgreSQL's ``pg_stat_activity``.

    Raises:
        StoreUnavailableError: if the driver is not installed.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, begin="BEGIN IMMEDIATE", read_only=False, pool_size=1)
    engine = _postgresql_engine(url, pool_size=1, isolation_level="READ COMMITTED", name=name)
    if turn is not None:
        turn.begin_with(engine, _place(url))
    return engine


def standby_engine(url: URL, name: str) -> Engine:
    """An engine for a standby that waits to write a PostgreSQL database; each statement is a transaction.

    Raises:
        StoreUnavailableError: if the driver is not installed.
    """
    return _postgresql_engine(url, pool_size=1, isolation_level="AUTOCOMMIT", name=name)


def reader_engine(url: URL, *, connections: int) -> Engine:
    """An engine for reads: each transaction sees one snapshot and cannot write."""
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, begin="BEGIN", read_only=True, pool_size=connections)
    engine = _postgresql_engine(url, pool_size=connections, isolation_level="REPEATABLE READ")
    return engine.execution_options(postgresql_readonly=True)


def upsert(connection: Connection, table: Table, rows: Rows) -> None:
    """Insert rows (all with the same columns, including the primary key); existing rows take the new values."""
    if not rows:
        return
    connection.execute(_upsert(connection.dialect.name, table, tuple(rows[0])), [dict(row) for row in rows])


def insert_new(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless its primary key exists; returns whether it was inserted. Safe with concurrent writers."""
    return connection.execute(_insert_new(connection.dialect.name, table), dict(row)).first() is not None


def insert_all_new(connection: Connection, table: Table, rows: Rows) -> bool:
    """Insert rows unless their primary keys exist; returns whether all of them were inserted."""
    done = connection.execute(_insert_all_new(connection.dialect.name, table), [dict(row) for row in rows])
    return done.rowcount == len(rows)


def lock_schema(connection: Connection) -> None:
    """Prevent other processes from migrating until this transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})
    # SQLite: the writer's BEGIN IMMEDIATE already excludes other writers


def check_database(connection: Connection) -> None:
    """Check the database for damage, which takes about a second per GB in SQLite; check PostgreSQL's encoding.

    Raises:
        SchemaError: if its encoding is not UTF-8.
        StoreDamagedError: if it is damaged.
    """
    if connection.dialect.name != "sqlite":  # PostgreSQL checks its own pages
        _check_encoding(connection)
        return
    found = connection.execute(text("PRAGMA quick_check(1)")).scalar()
    if found != "ok":
        raise StoreDamagedError(f"the database is damaged: {found}", where=_place(connection.engine.url))


def _check_encoding(connection: Connection) -> None:
    encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise SchemaError(
            f"{_place(connection.engine.url)} has the encoding {encoding}, which does not hold every text",
            "make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
        )


def size_bytes(connection: Connection) -> int:
    """Return the size of the whole database in bytes."""
    if connection.dialect.name == "sqlite":
        query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    else:
        query = "SELECT pg_database_size(current_database())"
    return int(connection.execute(text(query)).scalar_one())


def translate(error: SQLAlchemyError, url: URL) -> ServerError:
    """Convert an error of the driver to the store's error."""
    place = _place(url)
    known = RecordConflictError(f"{error.orig}") if isinstance(error, IntegrityError) else _refusal(error, place)
    if known is not None:
        return known
    if not isinstance(error, DBAPIError) or isinstance(error, (DataError, ProgrammingError)):
        return StorageError(
            "store.query",
            f"a query of the database failed: {type(error).__name__}",
            "this is a bug in the server; please report it",
            where=f"{place}, {error}",
        )
    cause = error.orig
    if not isinstance(cause, sqlite3.Error):
        return StoreUnavailableError("the database server cannot be used", _CHECK_SERVER, where=f"{place}, {cause}")
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the primary code of an extended one
    if code in _DAMAGED or _NO_TEXT in str(cause):
        return StoreDamagedError(f"the database is damaged: {cause}", where=place)
    if code == sqlite3.SQLITE_FULL:
        return StoreFullError(f"the database cannot be written: {cause}", where=place)
    return StoreUnavailableError(
        f"the database cannot be used: {cause}", _REMEDIES.get(code, "see the server's log"), where=place
    )


def _refusal(error: SQLAlchemyError, place: str) -> ServerError | None:
    """The error for a refusal by PostgreSQL that an operator can remedy, chosen by code; otherwise None."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    code = getattr(cause, "sqlstate", None)
    said = str(cause).partition("\n")[0]
    if code == _SERVER_FULL:
        return StoreFullError(f"the database cannot be written: {said}", where=place)
    if code in _SERVER_DAMAGED:
        return StoreDamagedError(f"the database is damaged: {said}", where=place)
    if code in _NOT_ALLOWED:
        return StoreUnavailableError(f"the database cannot be used: {said}", _ALLOW, where=place)
    return None


@cache
def _upsert(dialect: str, table: Table, columns: tuple[str, ...]) -> Executable:
    """Cached, since building a statement costs more than running it."""
    keys = [column.name for column in table.primary_key]
    statement = _insert(dialect, table)
    changed = {name: statement.excluded[name] for name in columns if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


@cache
def _insert_new(dialect: str, table: Table) -> Executable:
    keys = list(table.primary_key)
    return _insert(dialect, table).on_conflict_do_nothing(index_elements=keys).returning(*keys)


@cache
def _insert_all_new(dialect: str, table: Table) -> Executable:
    return _insert(dialect, table).on_conflict_do_nothing(index_elements=list(table.primary_key))


def _insert(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    if dialect == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - loads three drivers; SQLite's users need none

    return postgresql.insert(table)


def _place(url: URL) -> str:
    return f"database {shown(url)}"


def _postgresql_engine(url: URL, *, pool_size: int, isolation_level: IsolationLevel, name: str = "") -> Engine:
    own = {**_PATIENCE, "application_name": name or "atoll"}
    given = {key: value for key, value in own.items() if key not in url.query}
    options = " ".join((_SERVER_PATIENCE, *url.normalized_query.get("options", ())))  # of equal keys the last one
    try:
        return create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level=isolation_level,
            connect_args={**given, "options": options, "client_encoding": "utf8"},
        )
    except ModuleNotFoundError as error:
        raise StoreUnavailableError(
            f"{_place(url)} needs the package {error.name}, which is not installed", install_hint("server,postgres")
        ) from None


def _sqlite_engine(url: URL, *, begin: str, read_only: bool, pool_size: int) -> Engine:
    engine = create_engine(url, pool_size=pool_size, max_overflow=0, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        try:  # the first statement reads the schema
            if not read_only:
                _use_write_ahead_log(cursor)
            for pragma in _pragmas(read_only=read_only):
                cursor.execute(f"PRAGMA {pragma}")
        except UnicodeDecodeError as error:  # SQLite quotes a damaged schema, and Python cannot decode the quotation
            raise sqlite3.DatabaseError(f"{_NO_TEXT}: its schema: {error.reason}") from error
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _use_write_ahead_log(cursor: DBAPICursor) -> None:
    """Switch a new database to the write-ahead log, permanently.

    The switch upgrades a read lock, for which SQLite ignores the busy timeout. A refused process therefore begins a
    transaction, which does wait, and then tries again.
    """
    deadline_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline_s:
                raise
        else:
            return
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("ROLLBACK")


def _pragmas(*, read_only: bool) -> tuple[str, ...]:
    common = ("foreign_keys=ON", "trusted_schema=OFF")
    if read_only:
        return (*common, "query_only=ON")
    return (
        *common,
        "synchronous=FULL",
        "fullfsync=ON",  # macOS: fsync alone does not reach the platter
        f"journal_size_limit={_WAL_LIMIT_BYTES}",
        "secure_delete=FAST",  # overwrite replaced secrets where that needs no additional write
    )
