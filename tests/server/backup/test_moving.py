"""A data directory's database goes to a database server and back, with every row, and nothing is deleted."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import update

from atoll.server.backup import back_up, make_standby, move_blobs, move_database, restore
from atoll.server.backup.moving import LEFT_FILE
from atoll.server.buckets import parse_place
from atoll.server.cli.server import server
from atoll.server.errors import InvalidRequestError
from atoll.server.stores import Store, StoreUnavailableError, models, runs, schema
from atoll.server.stores.database_place import DATABASE_FILE, PLACE_FILE, find
from atoll.server.stores.dialects import parse_url
from tests.postgresql import DatabaseServer
from tests.server.backup.test_backup import fill
from tests.server.stores.samples import NOW, RUN


def content(data: Path) -> tuple[object, ...]:
    """The content that a server on the directory would find."""
    store = Store.open(data)
    found = tuple(store.reader.submit(work, RUN).result() for work in (runs.get, models.listed))
    store.close()
    return found


def mark(data: Path, reason: str) -> None:
    """Make a server on the directory write."""
    store = Store.open(data)
    store.writer.submit(lambda connection: connection.execute(update(schema.runs).values(reason=reason))).result()
    store.close()


def reason_of(data: Path) -> str:
    """The last value that a server wrote there."""
    store = Store.open(data)
    row = store.reader.submit(runs.get, RUN).result()
    store.close()
    return row.reason


def test_there_and_back(tmp_path: Path, postgresql_url: str, database_server: DatabaseServer) -> None:
    fill(tmp_path)
    before = content(tmp_path)
    gone = move_database(tmp_path, parse_url(postgresql_url))
    assert (gone.rows["runs"], gone.rows["models"], gone.left) == (1, 3, str(tmp_path / LEFT_FILE))
    assert find(tmp_path) == parse_url(postgresql_url)
    assert not (tmp_path / DATABASE_FILE).exists()
    assert content(tmp_path) == before

    elsewhere = parse_url(database_server.new("elsewhere"))
    assert move_database(tmp_path, elsewhere).rows == gone.rows
    assert content(tmp_path) == before

    back = move_database(tmp_path, None)
    assert back.rows == gone.rows
    assert not (tmp_path / PLACE_FILE).exists()
    assert (tmp_path / DATABASE_FILE).stat().st_mode & 0o077 == 0
    assert content(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


def test_the_log_of_the_old_file_is_not_played_into_the_new_one(tmp_path: Path, postgresql_url: str) -> None:
    """SQLite keeps the log while another process reads; here a query that has not been read to its end."""
    fill(tmp_path)
    mark(tmp_path, "before")
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as other:
        assert other.execute("SELECT * FROM models").fetchone()
        mark(tmp_path, "logged")
        move_database(tmp_path, parse_url(postgresql_url))
    mark(tmp_path, "moved")
    move_database(tmp_path, None)
    assert reason_of(tmp_path) == "moved"
    with closing(sqlite3.connect(tmp_path / LEFT_FILE)) as left:
        assert left.execute("SELECT reason FROM runs").fetchall() == [("logged",)]


def killed_move(data: Path, after: str, url: str = "") -> None:
    """Move in a forked process, and kill it after a module's function."""
    pid = os.fork()
    if not pid:
        try:
            killing(*after.rsplit(".", 1))
            move_database(data, parse_url(url) if url else None)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def killing(module: str, name: str) -> None:
    """Let a module's function kill this process when it has done its work."""
    asked = getattr(sys.modules[module], name)

    def killed(*given: object, **named: object) -> None:
        asked(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(sys.modules[module], name, killed)


def test_a_killed_move_is_done_again(tmp_path: Path, postgresql_url: str, database_server: DatabaseServer) -> None:
    fill(tmp_path)
    mark(tmp_path, "first")
    moving = "atoll.server.backup.moving"
    killed_move(tmp_path, f"{moving}.copy_all", postgresql_url)
    assert reason_of(tmp_path) == "first"
    with pytest.raises(InvalidRequestError, match="holds the state") as refused:
        move_database(tmp_path, parse_url(postgresql_url))
    assert "if a move to it was killed, drop it" in refused.value.detail.remedy

    killed_move(tmp_path, "atoll.server.stores.database_place.note", database_server.new("atoll"))
    assert (tmp_path / DATABASE_FILE).exists()
    mark(tmp_path, "on the database server")
    killed_move(tmp_path, f"{moving}.copy_from_server")
    killed_move(tmp_path, f"{moving}.fsync_path")
    mark(tmp_path, "still there")
    move_database(tmp_path, None)
    assert reason_of(tmp_path) == "still there"
    assert [path.name for path in tmp_path.glob(f".{DATABASE_FILE}*")] == []


def test_a_back_up_of_a_database_server_is_restored_into_a_directory(tmp_path: Path, postgresql_url: str) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    fill(data)
    before = content(data)
    move_database(data, parse_url(postgresql_url))
    manifest = back_up(data, kept, now=NOW)
    assert [(line.run, line.rounds_released) for line in manifest.runs] == [(RUN, 0)]
    assert len(manifest.blobs) == 4
    restore(kept, tmp_path / "again", now=NOW)
    assert content(tmp_path / "again") == before


def test_a_directory_in_use_is_left_alone(tmp_path: Path, postgresql_url: str) -> None:
    store = Store.open(tmp_path)
    with pytest.raises(StoreUnavailableError, match="another server"):
        move_database(tmp_path, parse_url(postgresql_url))
    store.close()
    assert not (tmp_path / PLACE_FILE).exists()


def test_a_database_with_rows_is_left_alone(tmp_path: Path, postgresql_url: str) -> None:
    fill(tmp_path / "one")
    fill(tmp_path / "other")
    move_database(tmp_path / "one", parse_url(postgresql_url))
    with pytest.raises(InvalidRequestError, match="holds the state of a server") as refused:
        move_database(tmp_path / "other", parse_url(postgresql_url))
    assert refused.value.detail.remedy.startswith("name an empty database")
    assert (tmp_path / "other" / DATABASE_FILE).exists()


def test_a_database_that_is_there_already_is_refused(tmp_path: Path, postgresql_url: str) -> None:
    fill(tmp_path)
    with pytest.raises(InvalidRequestError, match=rf"is .*{DATABASE_FILE} already"):
        move_database(tmp_path, None)
    move_database(tmp_path, parse_url(postgresql_url))
    with pytest.raises(InvalidRequestError, match=r"is postgresql://.* already"):
        move_database(tmp_path, parse_url(postgresql_url))


def test_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="is not a server's data directory"):
        move_database(tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_the_commands(tmp_path: Path, postgresql_url: str) -> None:
    fill(tmp_path)

    def command(*arguments: str) -> str:
        done = CliRunner().invoke(server, [*arguments, "--data", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert json.loads(command("migrate", "--database", postgresql_url, "--json"))["rows"]["models"] == 3
    held = json.loads(command("storage", "--json"))["held"]
    assert [one["stored_bytes"] > 1_000_000 for one in held if one["elsewhere"]] == [True]
    assert "on the database server" in command("storage")
    assert "4 rows copied from postgresql://" in command("migrate", "--database", "sqlite")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://x/y", "'mysql' is not supported"),
        ("postgresql://me:secret@db/atoll", "holds a password"),
        ("postgresql://me@db", "names no database"),
        ("here", "cannot be read"),
    ],
)
def test_bad_urls_are_refused_before_anything_is_done(tmp_path: Path, url: str, said: str) -> None:
    fill(tmp_path)
    done = CliRunner().invoke(server, ["migrate", "--data", str(tmp_path), "--database", url])
    assert done.exit_code != 0
    assert said in done.stderr
    assert "secret" not in done.output
    assert not (tmp_path / PLACE_FILE).exists()


def test_a_server_that_knows_the_old_place_is_refused(tmp_path: Path, postgresql_url: str) -> None:
    """It was a standby, or was restored, and would continue from an old state."""
    fill(tmp_path / "data")
    (tmp_path / "bucket").mkdir()
    move_blobs(tmp_path / "data", parse_place((tmp_path / "bucket").as_uri()), lambda *_: None)
    move_database(tmp_path / "data", parse_url(postgresql_url))
    make_standby(tmp_path / "data", tmp_path / "other")
    move_database(tmp_path / "data", None)
    with pytest.raises(StoreUnavailableError, match="moved to another place") as refused:
        Store.open(tmp_path / "other")
    assert "standby" in refused.value.detail.remedy
    mark(tmp_path / "data", "goes on here")
