"""A data directory belongs to one database, which commands find on their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.server.errors import CorruptDataError
from atoll.server.stores import CommitError, SchemaError, Store, StoreUnavailableError, runs
from atoll.server.stores.database_place import DATABASE_FILE, PLACE_FILE, find, note, noted, sqlite_bytes
from atoll.server.stores.dialects import parse_url
from tests.postgresql import DatabaseServer
from tests.server.stores.samples import RUN, run


def test_a_new_directory_has_none(tmp_path: Path) -> None:
    assert find(tmp_path) is None


def test_sqlite_is_found_and_needs_no_note(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    found = find(tmp_path)
    assert found is not None
    assert found.database == str(tmp_path / DATABASE_FILE)
    assert noted(tmp_path) is None


def test_what_a_move_left_behind_is_none_of_the_databases_files(tmp_path: Path) -> None:
    for name, size in ((DATABASE_FILE, 3), (f"{DATABASE_FILE}-wal", 5), (f"{DATABASE_FILE}.moved", 100)):
        (tmp_path / name).write_bytes(bytes(size))
    assert sqlite_bytes(tmp_path) == [3, 5]
    assert sqlite_bytes(tmp_path / "nowhere") == []


def test_a_database_server_is_noted_and_then_found_without_being_named(tmp_path: Path, postgresql_url: str) -> None:
    store = Store.open(tmp_path, url=postgresql_url)
    store.writer.submit(runs.add, run()).result()
    store.close()
    assert find(tmp_path) == parse_url(postgresql_url)
    assert not (tmp_path / DATABASE_FILE).exists()
    assert (tmp_path / PLACE_FILE).stat().st_mode & 0o077 == 0
    again = Store.open(tmp_path)
    assert again.reader.submit(runs.get, RUN).result() == run()
    again.close()


def test_a_directory_with_sqlite_is_not_moved_by_a_setting(tmp_path: Path, postgresql_url: str) -> None:
    Store.open(tmp_path).close()
    with pytest.raises(SchemaError, match=DATABASE_FILE) as refused:
        Store.open(tmp_path, url=postgresql_url)
    assert "atoll server migrate" in refused.value.detail.remedy


def test_another_database_than_the_noted_one_is_refused(
    tmp_path: Path, postgresql_url: str, database_server: DatabaseServer
) -> None:
    Store.open(tmp_path, url=postgresql_url).close()
    with pytest.raises(SchemaError, match=r"/atoll\?.*/another\?"):
        Store.open(tmp_path, url=database_server.new("another"))


def test_a_database_of_another_directory_is_refused(tmp_path: Path, postgresql_url: str) -> None:
    first = Store.open(tmp_path / "first", url=postgresql_url)
    first.writer.submit(runs.add, run()).result()
    first.close()
    with pytest.raises(SchemaError, match="second is not its data directory"):
        Store.open(tmp_path / "second", url=postgresql_url)
    assert find(tmp_path / "second") is None


def test_an_empty_database_beside_models_is_refused(
    tmp_path: Path, postgresql_url: str, database_server: DatabaseServer
) -> None:
    store = Store.open(tmp_path, url=postgresql_url)
    with store.blobs.create() as writer:
        writer.write(b"a model")
        writer.commit()
    store.close()
    database_server.new("atoll")
    with pytest.raises(SchemaError, match=r"is empty, and .* holds models"):
        Store.open(tmp_path)


def test_a_second_server_on_the_same_database_is_refused(tmp_path: Path, postgresql_url: str) -> None:
    first = Store.open(tmp_path / "first", url=postgresql_url)
    note(tmp_path, parse_url(postgresql_url))
    with pytest.raises(StoreUnavailableError, match=r"database postgresql://.*: another server uses") as refused:
        Store.open(tmp_path)
    assert "stop it first" in refused.value.detail.remedy
    first.close()
    Store.open(tmp_path).close()


def test_a_writer_whose_lock_went_to_another_server_writes_nothing_more(
    tmp_path: Path, postgresql_url: str, database_server: DatabaseServer
) -> None:
    stale = Store.open(tmp_path / "stale", url=postgresql_url)
    database_server.stop()
    database_server.start()
    note(tmp_path, parse_url(postgresql_url))
    other = Store.open(tmp_path)
    with pytest.raises(CommitError, match="another server has used the database"):
        stale.writer.submit(runs.add, run()).result()
    assert other.reader.submit(runs.listed, project=None).result() == ()
    other.close()
    with pytest.raises(CommitError, match="another server has used the database"):
        stale.writer.submit(runs.add, run()).result()
    stale.close()


def test_a_writer_that_lost_its_connection_and_nothing_else_writes_on(
    tmp_path: Path, postgresql_url: str, database_server: DatabaseServer
) -> None:
    store = Store.open(tmp_path, url=postgresql_url)
    database_server.stop()
    database_server.start()
    store.writer.submit(runs.add, run()).result()
    assert store.reader.submit(runs.get, RUN).result() == run()
    store.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_note_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / PLACE_FILE).write_text(text)
    with pytest.raises(CorruptDataError, match=PLACE_FILE):
        find(tmp_path)


def test_a_note_of_a_foreign_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / PLACE_FILE).write_text(json.dumps({"database": "mysql://x/y"}))
    with pytest.raises(SchemaError, match="mysql"):
        find(tmp_path)


@pytest.mark.parametrize("url", ["postgresql://me:secret@db/atoll", "postgresql://me@db/atoll?password=secret"])
def test_a_password_in_the_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SchemaError, match="holds a password") as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)
    assert "PGPASSWORD" in refused.value.detail.remedy
