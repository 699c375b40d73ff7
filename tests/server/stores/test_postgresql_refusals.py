"""Refusals of a database server are reported with a remedy, before a data directory depends on the database."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, make_url, text

from atoll.server.errors import StorageFullError
from atoll.server.stores import SchemaError, Store, StoreDamagedError, StoreUnavailableError
from atoll.server.stores.database_place import find
from atoll.server.stores.dialects import parse_url
from tests.postgresql import DatabaseServer

KEY_DATA = b"K\x00\x00\x00\x0c"  # PostgreSQL's message with the process that serves a connection


def ask(url: str, *statements: str) -> None:
    """Run statements."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_an_account_that_may_not_make_tables(tmp_path: Path, postgresql_url: str) -> None:
    ask(postgresql_url, "DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN")
    guest = make_url(postgresql_url).set(username="guest").render_as_string(hide_password=False)
    with pytest.raises(StoreUnavailableError, match="permission denied for schema public") as refused:
        Store.open(tmp_path, url=guest)
    assert "CREATE on the schema" in refused.value.detail.remedy
    assert find(tmp_path) is None
    Store.open(tmp_path, url=postgresql_url).close()


def test_no_schema(tmp_path: Path, postgresql_url: str) -> None:
    ask(postgresql_url, "DROP SCHEMA public")
    with pytest.raises(StoreUnavailableError, match="no schema has been selected to create in"):
        Store.open(tmp_path, url=postgresql_url)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_an_encoding_that_does_not_hold_every_text(
    tmp_path: Path, database_server: DatabaseServer, encoding: str
) -> None:
    url = database_server.new("other")
    ask(
        database_server.new("atoll"),
        "DROP DATABASE other",
        f"CREATE DATABASE other ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0",
    )
    with pytest.raises(SchemaError, match=f"has the encoding {encoding}") as refused:
        Store.open(tmp_path, url=url)
    assert "ENCODING 'UTF8'" in refused.value.detail.remedy
    assert find(tmp_path) is None


@pytest.mark.parametrize(("code", "error"), [("53100", StorageFullError), ("XX001", StoreDamagedError)])
def test_a_full_disk_and_a_damaged_page(tmp_path: Path, postgresql_url: str, code: str, error: type[Exception]) -> None:
    def fail(connection: Connection) -> None:
        connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'no block' USING ERRCODE = '{code}'; END $$"))

    store = Store.open(tmp_path, url=postgresql_url)
    with pytest.raises(error, match="no block"):
        store.writer.submit(fail).result()
    store.close()


def test_the_database_server_notices_a_vanished_writer_in_half_a_minute(tmp_path: Path, postgresql_url: str) -> None:
    """Even one with unread answers, which keepalives do not cover, and with the operator's options in the URL."""

    def settings(connection: Connection) -> dict[str, str]:
        query = text("SELECT name, reset_val FROM pg_settings WHERE name LIKE 'tcp_%'")
        return {row.name: row.reset_val for row in connection.execute(query)}

    options = {"options": "-c tcp_keepalives_idle=7"}
    url = make_url(postgresql_url).update_query_dict(options).render_as_string(hide_password=False)
    store = Store.open(tmp_path, url=url)
    found = store.writer.submit(settings).result()
    store.close()
    assert found["tcp_user_timeout"] == "30000"
    assert found["tcp_keepalives_idle"] == "7"
    assert found["tcp_keepalives_count"] == "3"


def test_a_connection_pooler_is_refused(tmp_path: Path, postgresql_url: str) -> None:
    with pooler(postgresql_url) as url:
        with pytest.raises(StoreUnavailableError, match="a connection pooler is in front of") as refused:
            Store.open(tmp_path, url=url)
        assert "PgBouncer" in refused.value.detail.remedy


@pytest.mark.parametrize("name", ["password", "sslpassword"])
def test_a_secret_in_the_url_is_refused(name: str) -> None:
    with pytest.raises(SchemaError, match="holds a password") as refused:
        parse_url(f"postgresql://me@db/atoll?{name}=geheim")
    assert "geheim" not in str(refused.value)


@contextmanager
def pooler(url: str) -> Iterator[str]:
    """A URL that behaves like PgBouncer, by reporting a made-up process."""
    folder = make_url(url).query["host"]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_serve, args=(listening, f"{folder}/.s.PGSQL.5432"), daemon=True).start()
        port = listening.getsockname()[1]
        yield f"postgresql://postgres@127.0.0.1:{port}/atoll?sslmode=disable&gssencmode=disable"
        listening.shutdown(socket.SHUT_RDWR)


def _serve(listening: socket.socket, path: str) -> None:
    with suppress(OSError):
        while True:
            near, far = listening.accept()[0], socket.socket(socket.AF_UNIX)
            far.connect(path)
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError), closing(target):
        while data := source.recv(1 << 16):
            at = data.find(KEY_DATA) + len(KEY_DATA)
            if at >= len(KEY_DATA):
                (process,) = struct.unpack_from(">i", data, at)
                data = data[:at] + struct.pack(">i", process + 1) + data[at + 4 :]
            target.sendall(data)
