import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.server.errors import ServerError
from atoll.server.stores import Store, StoreDamagedError, StoreUnavailableError, runs
from tests.server.stores.samples import RUN, OpenStore, run

NOBODY = 65_534


def test_what_was_written_is_there_after_opening_again(open_store: OpenStore) -> None:
    first = open_store()
    first.writer.submit(runs.add, run()).result()
    with first.blobs.create() as writer:
        writer.write(b"weights")
        name = writer.commit().name
    first.close()
    again = open_store()
    assert again.reader.submit(runs.get, RUN).result() == run()
    with again.blobs.open(name) as blob:
        assert bytes(blob.read(0, 7)) == b"weights"


def test_sqlite_is_set_to_be_durable(tmp_path: Path) -> None:
    store = Store.open(tmp_path)

    def pragmas(name: str) -> object:
        return store.writer.submit(lambda c: c.exec_driver_sql(f"PRAGMA {name}").scalar()).result()

    assert [pragmas(name) for name in ("journal_mode", "synchronous", "foreign_keys")] == ["wal", 2, 1]
    store.close()


def test_only_the_owner_may_read_the_database(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.writer.submit(runs.add, run()).result()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.is_file()}
    store.close()
    assert set(modes.values()) == {0o600}
    assert {"atoll.sqlite3", "atoll.sqlite3-wal", "atoll.sqlite3-shm"} <= modes.keys()


def test_one_server_per_directory(open_store: OpenStore) -> None:
    first = open_store()
    with pytest.raises(StoreUnavailableError, match=rf"another server \(process {os.getpid()}\) runs on") as refused:
        open_store()
    assert "stop it first" in refused.value.detail.remedy
    open_store(primary=False)
    first.close()
    open_store()


def test_a_killed_server_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, pathlib\n"
        "from atoll.server.stores import Store\n"
        "Store.open(pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    Store.open(tmp_path).close()


def test_partial_sums_of_a_killed_server_go_however_many_workers_the_next_has(tmp_path: Path) -> None:
    left = tmp_path / "partials" / "worker-3-0123456789abcdef.partial"
    left.parent.mkdir()
    left.write_bytes(b"half a sum")
    Store.open(tmp_path, primary=True).close()
    assert not left.parent.exists()


def test_other_processes_leave_the_partial_sums_alone(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    left = tmp_path / "partials" / "worker-3-0123456789abcdef.partial"
    left.parent.mkdir()
    left.write_bytes(b"half a sum")
    Store.open(tmp_path, primary=False).close()
    assert left.exists()


def test_a_failed_opening_lets_go_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "atoll.sqlite3").write_bytes(b"not a database" * 1000)
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match="not a database"):
            Store.open(tmp_path)


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.9])
def test_a_truncated_database_is_found_on_opening(tmp_path: Path, keep: float) -> None:
    path = _filled(tmp_path)
    os.truncate(path, int(path.stat().st_size * keep) // 4096 * 4096)
    with pytest.raises(StoreDamagedError, match=r"atoll\.sqlite3") as found:
        Store.open(tmp_path)
    assert "backup" in found.value.detail.remedy


def test_flipped_pages_give_an_error_or_change_nothing(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    whole = path.read_bytes()
    found = 0
    for page in range(len(whole) // 4096):
        path.write_bytes(whole[: page * 4096] + bytes(64) + whole[page * 4096 + 64 :])
        try:
            store = Store.open(tmp_path)
        except ServerError:
            found += 1
            continue
        try:
            assert store.reader.submit(runs.get, RUN).result() == run()
        except ServerError:
            found += 1
        store.close()
    assert found > 10


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError, match=str(tmp_path / "file" / "data")):
        Store.open(tmp_path / "file" / "data")


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder, while this process has no right to override file permissions."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    data = folder / "data"
    if os.geteuid() == 0:
        data.mkdir()
        os.chown(data, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        yield data
        os.seteuid(0)
    else:
        yield data
    for path in (data, *data.rglob("*")):
        path.chmod(0o700)
    shutil.rmtree(folder)


def test_a_read_only_directory_is_named_with_a_remedy(unprivileged: Path) -> None:
    Store.open(unprivileged).close()
    for path in (*unprivileged.rglob("*"), unprivileged):
        path.chmod(0o500 if path.is_dir() else 0o400)
    with pytest.raises(StoreUnavailableError, match=str(unprivileged)) as refused:
        Store.open(unprivileged)
    assert "may write" in refused.value.detail.remedy


def test_a_read_only_database_is_named_with_a_remedy(unprivileged: Path) -> None:
    Store.open(unprivileged).close()
    (unprivileged / "atoll.sqlite3").chmod(0o400)
    with pytest.raises(StoreUnavailableError, match=r"atoll\.sqlite3") as refused:
        Store.open(unprivileged).writer.submit(runs.add, run()).result()
    assert "writable" in refused.value.detail.remedy


def test_a_missing_database_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="postgresql") as refused:
        Store.open(tmp_path, url=f"postgresql+psycopg://me@/atoll?host={tmp_path}")
    assert "reachable" in refused.value.detail.remedy


def _filled(folder: Path) -> Path:
    """A database file with some pages of content in it, its log checkpointed."""
    store = Store.open(folder)
    store.writer.submit(runs.add, run()).result()
    for number in range(200):
        store.writer.submit(runs.add, run(f"r{number:012d}")).result()
    store.close()
    path = folder / "atoll.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


def test_a_schema_with_damaged_text_is_reported(tmp_path: Path) -> None:
    """SQLite quotes it in its error, which Python cannot decode."""
    Store.open(tmp_path).close()
    (database,) = tmp_path.glob("*.sqlite3")
    content = bytearray(database.read_bytes())
    at = content.index(b"CREATE TABLE runs")
    content[at : at + 17] = b"CREATE TABL\xa0 runs"
    database.write_bytes(content)
    with pytest.raises(StoreDamagedError, match="the database is damaged"):
        Store.open(tmp_path)
