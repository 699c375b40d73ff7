"""``atoll doctor`` looks at a database server: whether it answers, and whether it keeps what it acknowledges."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from atoll.server.cli.check_database import database_server as checked
from atoll.server.cli.checks import Status
from atoll.server.stores import Store
from atoll.server.stores.database_place import note
from atoll.server.stores.dialects import parse_url


def test_sqlite_is_not_its_matter(tmp_path: Path) -> None:
    assert list(checked(tmp_path)) == []
    Store.open(tmp_path).close()
    assert list(checked(tmp_path)) == []


def test_a_server_that_answers(tmp_path: Path, postgresql_url: str) -> None:
    Store.open(tmp_path, url=postgresql_url).close()
    (found,) = checked(tmp_path)
    assert found.status is Status.OK
    assert "PostgreSQL 1" in found.message


def test_a_server_that_forgets_in_a_crash(tmp_path: Path, postgresql_url: str) -> None:
    Store.open(tmp_path, url=postgresql_url).close()
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute("ALTER DATABASE atoll SET synchronous_commit TO off")
    (found,) = checked(tmp_path)
    assert (found.status, found.remedy) == (Status.FAIL, "set synchronous_commit to on")
    assert "synchronous_commit = off" in found.message


@pytest.mark.parametrize("host", ["127.0.0.1:9", "nowhere.invalid"])
def test_a_server_that_does_not_answer(tmp_path: Path, host: str) -> None:
    note(tmp_path, parse_url(f"postgresql://me@{host}/atoll"))
    (found,) = checked(tmp_path)
    assert found.status is Status.FAIL
    assert "reachable" in found.remedy


def test_an_older_schema(tmp_path: Path, postgresql_url: str) -> None:
    note(tmp_path, parse_url(postgresql_url))
    (found,) = checked(tmp_path)
    assert found.status is Status.FAIL
    assert "schema revision none" in found.message
