"""``atoll doctor`` checks that a database server answers and does not lose acknowledged data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from atoll.server.cli.check_database import database_server as checked
from atoll.server.cli.check_database import schema
from atoll.server.cli.checks import Finding, Status
from atoll.server.stores import Store, database_clock
from atoll.server.stores.database_place import note
from atoll.server.stores.dialects import parse_url
from atoll.server.stores.schema_version import head_revision


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


@pytest.mark.parametrize(
    ("ahead_s", "status"), [(3600.0, Status.FAIL), (-3600.0, Status.FAIL), (20.0, Status.WARN), (2.0, None)]
)
def test_a_clock_that_differs(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch, ahead_s: float, status: Status | None
) -> None:
    Store.open(tmp_path, url=postgresql_url).close()
    monkeypatch.setattr(database_clock, "skew", lambda _: database_clock.Skew(ahead_s, 0.1))
    assert [one.status for one in checked(tmp_path) if one.check == "clock"] == ([] if status is None else [status])


@pytest.mark.parametrize("host", ["127.0.0.1:9", "nowhere.invalid"])
def test_a_server_that_does_not_answer(tmp_path: Path, host: str) -> None:
    note(tmp_path, parse_url(f"postgresql://me@{host}/atoll"))
    (found,) = checked(tmp_path)
    assert found.status is Status.FAIL
    assert "reachable" in found.remedy


def test_an_empty_database(tmp_path: Path, postgresql_url: str) -> None:
    note(tmp_path, parse_url(postgresql_url))
    (found,) = schema(tmp_path)
    assert found.status is Status.FAIL
    assert "no tables of atoll" in found.message


class TestBeforeTheFirstStart:
    def test_an_empty_database_is_fine(self, tmp_path: Path, postgresql_url: str) -> None:
        url, data = parse_url(postgresql_url), tmp_path / "missing"
        assert [one.status for one in (*checked(data, url), *schema(data, url))] == [Status.OK, Status.OK]

    def test_one_in_use_is_another_federations(self, tmp_path: Path, postgresql_url: str) -> None:
        Store.open(tmp_path / "theirs", url=postgresql_url).close()
        (found,) = schema(tmp_path / "ours", parse_url(postgresql_url))
        assert found.status is Status.FAIL
        assert "is not part of" in found.message

    def test_a_directory_with_another_database(self, tmp_path: Path, postgresql_url: str) -> None:
        Store.open(tmp_path).close()
        (found,) = checked(tmp_path, parse_url(postgresql_url))
        assert found.status is Status.FAIL
        assert "the settings name" in found.message


class TestSchema:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        opened = Store.open(tmp_path)
        yield opened
        opened.close()

    def found(self, tmp_path: Path, store: Store, *statements: str) -> Finding:
        for statement in statements:
            store.writer.submit(Connection.execute, text(statement)).result()
        (found,) = schema(tmp_path)
        return found

    def test_none(self, tmp_path: Path) -> None:
        assert list(schema(tmp_path)) == []

    def test_of_this_version(self, tmp_path: Path, store: Store) -> None:
        found = self.found(tmp_path, store)
        assert (found.status, head_revision() in found.message) == (Status.OK, True)

    def test_older(self, tmp_path: Path, store: Store) -> None:
        found = self.found(tmp_path, store, "UPDATE alembic_version SET version_num = '0007'")
        assert (found.status, f"upgrades it to {head_revision()}" in found.message) == (Status.OK, True)

    def test_newer(self, tmp_path: Path, store: Store) -> None:
        newer = "UPDATE alembic_version SET version_num = '9999'"
        noted = f"INSERT INTO schema_upgrades VALUES ('9999', '{head_revision()}', 1.0, '9.9.9')"  # noqa: S608 - ours
        found = self.found(tmp_path, store, newer, noted)
        assert found.status is Status.WARN
        assert "9999 (by atoll 9.9.9, 1970-01-01), newer than" in found.message

    def test_too_new(self, tmp_path: Path, store: Store) -> None:
        found = self.found(tmp_path, store, "UPDATE alembic_version SET version_num = '9999'")
        assert (found.status, "or a later one" in found.remedy) == (Status.FAIL, True)
