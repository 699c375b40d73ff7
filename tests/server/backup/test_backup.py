"""A backup holds everything that a server needs to continue; a restoration verifies everything before it uses it."""

import errno
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, update

from atoll.server.backup import back_up, last_restoration, read_manifest, restore
from atoll.server.cli.server import server
from atoll.server.errors import CorruptDataError, InvalidRequestError, StorageError, StorageFullError
from atoll.server.identity import Authority
from atoll.server.privacy import ledger
from atoll.server.stores import (
    BlobDamagedError,
    BlobMissingError,
    Model,
    SchemaError,
    Store,
    StoreDamagedError,
    models,
    noise_states,
    populations,
    runs,
    schema,
)
from atoll.server.stores.row_conversion import to_checksummed_row
from tests.patience import WAIT_S
from tests.server.ingest.uploads import flip
from tests.server.privacy import ledgers
from tests.server.rpc.world import job
from tests.server.stores.samples import NOW, RUN
from tests.system.disks import namespaces
from tests.system.processes import ATOLL

MADE_AT = 1_800_000_000.0
NOT_KEPT = {"spool", "server.lock", "atoll.sqlite3-wal", "atoll.sqlite3-shm"}


def put(store: Store, content: bytes) -> str:
    with store.blobs.create(chunk_bytes=4096) as writer:
        writer.write(content)
        return writer.commit().name


def fill(data: Path) -> list[str]:
    """Write a server's data: a run with three models, the newest with a state; a spare blob; an upload."""
    store = Store.open(data)
    names = [put(store, bytes([number]) * 10_000) for number in range(5)]
    row = runs.Run(RUN, "digits", job().decode(), b"", names[0], names[2], 5, "running", "admin", NOW)

    def work(connection: Connection) -> None:
        runs.add(connection, row)
        for version in range(3):
            states = (("momentum", names[3]),) if version == 2 else ()
            models.add(connection, Model(RUN, version, version or None, names[version], 10_000, NOW, states))

    store.writer.submit(work).result()
    store.close()
    Authority.open(data / "ca", now=time.time()).server_key_pair(["localhost"], now=time.time())
    (data / "operator.json").write_text("{}")
    (data / "operator.json").chmod(0o600)
    (data / "spool" / RUN).mkdir(parents=True)
    (data / "spool" / RUN / "x.data").write_bytes(b"somebody's update")
    return names


def hold_models(connection: Connection, blob: str) -> None:
    """Use this model as the model of private runs, which have none."""
    for run in (ledgers.FIRST, ledgers.SECOND):
        for model in models.listed(connection, run):
            at = (schema.models.c.run_id == run) & (schema.models.c.version == model.version)
            row = to_checksummed_row(replace(model, blob=blob))
            connection.execute(update(schema.models).where(at).values(row))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("copy", [False, True])
def test_a_backup_restores_named_blobs_and_holds_no_participants_data(tmp_path: Path, copy: bool) -> None:
    names = fill(tmp_path / "data")
    manifest = back_up(tmp_path / "data", tmp_path / "kept", now=MADE_AT, copy=copy)
    assert set(manifest.blobs) == set(names[:4])
    assert [(run.run, run.status) for run in manifest.runs] == [(RUN, "running")]
    assert read_manifest(tmp_path / "kept") == manifest
    assert not list((tmp_path / "kept").rglob("*.data"))

    restore(tmp_path / "kept", tmp_path / "again", now=MADE_AT + 5)
    store = Store.open(tmp_path / "again")
    assert store.reader.submit(models.latest, RUN).result() == Model(
        RUN, 2, 2, names[2], 10_000, NOW, (("momentum", names[3]),)
    )
    for name in manifest.blobs:
        store.blobs.verify(name)
    store.close()
    assert last_restoration(tmp_path / "again") == MADE_AT + 5
    assert last_restoration(tmp_path / "data") == 0.0
    before, after = (folder / "ca" / "authority.key" for folder in (tmp_path / "data", tmp_path / "again"))
    assert before.read_bytes() == after.read_bytes()


def test_the_privacy_ledger_and_the_state_of_the_noise_come_back(data: Path, tmp_path: Path) -> None:
    store = Store.open(data)
    store.writer.submit(ledgers.fill).result()
    store.writer.submit(hold_models, put(store, b"a model")).result()
    before = store.reader.submit(ledger.spent, ledgers.CLINIC).result()
    noise = store.reader.submit(noise_states.find, ledgers.FIRST).result()
    store.close()
    back_up(data, tmp_path / "backup", now=MADE_AT)
    restore(tmp_path / "backup", tmp_path / "new", now=MADE_AT)
    restored = Store.open(tmp_path / "new")
    assert restored.reader.submit(ledger.flaws).result() == {}
    assert restored.reader.submit(ledger.spent, ledgers.CLINIC).result() == before
    assert restored.reader.submit(noise_states.find, ledgers.FIRST).result() == noise
    restored.close()


def test_a_directory_that_is_there_is_filled_and_stays_the_same(data: Path, tmp_path: Path) -> None:
    """A mount point can be filled, not replaced; a new file system has a folder of its own in it."""
    back_up(data, tmp_path / "kept", now=MADE_AT)
    again = tmp_path / "again"
    (again / "lost+found").mkdir(parents=True)
    before = again.stat().st_ino
    restore(tmp_path / "kept", again, now=MADE_AT)
    assert again.stat().st_ino == before
    assert {path.name for path in again.iterdir()} == {path.name for path in data.iterdir()} - NOT_KEPT | {
        "lost+found",
        "restored.json",
    }
    Store.open(again).close()


@pytest.mark.skipif(not namespaces(), reason="this machine does not allow mounts in a new namespace")
def test_a_restoration_tells_what_to_compare(data: Path, tmp_path: Path) -> None:
    store = Store.open(data)
    store.writer.submit(ledgers.fill).result()
    store.writer.submit(hold_models, put(store, b"a model")).result()
    head = store.reader.submit(populations.get, ledgers.CLINIC).result().head
    store.close()
    kept, again, other = tmp_path / "kept", tmp_path / "again", tmp_path / "other"
    back_up(data, kept, now=MADE_AT)
    seen = CliRunner().invoke(server, ["restore", str(kept), "--data", str(again), "--json"])
    assert seen.exit_code == 0, seen.output
    (found,) = json.loads(seen.stdout)["ledgers"]
    assert found == {"population": "clinic", "charges": 5, "last_charged_at": NOW + 2, "head": head, "flaw": ""}
    words = CliRunner().invoke(server, ["restore", str(kept), "--data", str(other)]).stdout
    assert head in words
    assert "`atoll privacy ledger --offline --data" in " ".join(words.split())
    assert sorted(path.name for path in other.iterdir()) == sorted(path.name for path in again.iterdir())
    assert not list(other.glob("*-wal"))


def test_a_disk_of_its_own_is_restored_to(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "kept", now=MADE_AT)
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=16m,mode=700 tmpfs "$0" && "$@" --json && '
        'test -f "$0/atoll.sqlite3" && test ! -e "$0/.restoring" && umount "$0"'
    )
    command = [*ATOLL, "server", "restore", str(tmp_path / "kept"), "--data", str(disk)]
    done = subprocess.run(
        [*namespaces(), "sh", "-c", script, str(disk), *command], capture_output=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert not list(disk.iterdir())


class TestKilled:
    """A restoration that ends in the middle."""

    @pytest.mark.parametrize("moved", [0, 1, 2, 3])
    def test_no_server_starts_on_what_it_left(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
    ) -> None:
        back_up(data, tmp_path / "kept", now=MADE_AT)
        again, rename = tmp_path / "again", Path.rename
        names: list[str] = []

        def die_after(path: Path, target: Path) -> Path:
            if path.parent.name == ".restoring" and len(names) == moved:
                raise KeyboardInterrupt
            names.append(path.name)
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", die_after)
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            with pytest.raises(KeyboardInterrupt):
                restore(tmp_path / "kept", again, now=MADE_AT)
        assert (again / ".restoring" / "atoll.sqlite3").exists()
        with pytest.raises(SchemaError, match="was not completed"):
            Store.open(again)
        with pytest.raises(InvalidRequestError, match="is not empty"):
            restore(tmp_path / "kept", again, now=MADE_AT)

    @pytest.mark.parametrize("there", [True, False])
    def test_one_that_fails_leaves_what_it_found(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
    ) -> None:
        back_up(data, tmp_path / "kept", now=MADE_AT)
        again, rename = tmp_path / "again", Path.rename
        if there:
            again.mkdir()

        def refuse_the_last(path: Path, target: Path) -> Path:
            if target == again / "atoll.sqlite3":
                raise OSError(errno.EIO, "Input/output error")
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", refuse_the_last)
            with pytest.raises(StorageError, match="cannot be written"):
                restore(tmp_path / "kept", again, now=MADE_AT)
        assert again.exists() == there
        assert not there or not list(again.iterdir())
        restore(tmp_path / "kept", again, now=MADE_AT)


def test_keys_are_private_in_both_places(data: Path, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        back_up(data, tmp_path / "kept", now=MADE_AT)
        restore(tmp_path / "kept", tmp_path / "again", now=MADE_AT)
    finally:
        os.umask(old)
    for place in (tmp_path / "kept", tmp_path / "again"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        for private in ("ca/authority.key", "ca/server.pem", "operator.json", "atoll.sqlite3"):
            assert stat.S_IMODE((place / private).stat().st_mode) == 0o600, private


def test_a_linked_model_survives_that_the_server_removes_it(data: Path, tmp_path: Path) -> None:
    manifest = back_up(data, tmp_path / "kept", now=MADE_AT)
    store = Store.open(data)
    for name in manifest.blobs:
        store.blobs.set_aside(name)
    store.blobs.sweep()
    store.close()
    restore(tmp_path / "kept", tmp_path / "again", now=MADE_AT)


def test_a_model_that_was_pruned_is_not_missed_but_the_newest_is(tmp_path: Path) -> None:
    names = fill(tmp_path / "data")
    store = Store.open(tmp_path / "data")
    store.blobs.set_aside(names[1])
    assert names[1] not in back_up(tmp_path / "data", tmp_path / "kept", now=MADE_AT).blobs
    store.blobs.set_aside(names[3])
    with pytest.raises(BlobMissingError):
        back_up(tmp_path / "data", tmp_path / "other", now=MADE_AT)
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "kept"]


class TestRefusals:
    def test_a_place_that_is_taken(self, data: Path, tmp_path: Path) -> None:
        (tmp_path / "kept").mkdir()
        with pytest.raises(InvalidRequestError, match="exists already"):
            back_up(data, tmp_path / "kept", now=MADE_AT)
        back_up(data, tmp_path / "good", now=MADE_AT)
        with pytest.raises(InvalidRequestError, match="is not empty"):
            restore(tmp_path / "good", data, now=MADE_AT)

    def test_what_is_no_server_and_no_back_up(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequestError, match="not a server's data"):
            back_up(tmp_path, tmp_path / "kept", now=MADE_AT)
        with pytest.raises(InvalidRequestError, match="is not a backup"):
            restore(tmp_path, tmp_path / "again", now=MADE_AT)

    def test_a_disk_without_room(self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        back_up(data, tmp_path / "kept", now=MADE_AT)
        monkeypatch.setattr("atoll.server.disk.space.free_bytes", lambda _: 1000)
        with pytest.raises(StorageFullError, match="no room for the data directory"):
            restore(tmp_path / "kept", tmp_path / "again", now=MADE_AT)
        with pytest.raises(StorageFullError, match="no room for the database"):
            back_up(data, tmp_path / "other", now=MADE_AT)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "kept"]

    def test_a_damaged_source_is_not_backed_up(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        newest = fill(data)[2]
        blob = data / "blobs" / newest[:2] / newest
        flip(blob, 100)
        with pytest.raises(BlobDamagedError):
            back_up(data, tmp_path / "kept", now=MADE_AT)
        flip(blob, 100)
        page = (data / "atoll.sqlite3").read_bytes()[:4096]
        with (data / "atoll.sqlite3").open("r+b") as file:
            file.seek(4096)
            file.write(page[::-1] * 3)
        with pytest.raises(StoreDamagedError):
            back_up(data, tmp_path / "kept", now=MADE_AT)
        assert [path.name for path in tmp_path.iterdir()] == ["data"]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


DAMAGES: list[Callable[[Path], None]] = [truncate, flip_middle, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", ["atoll.sqlite3", "blob", "ca/authority.key", "manifest.json"])
def test_nothing_is_touched_for_a_back_up_that_is_not_whole(
    data: Path, tmp_path: Path, what: str, damage: Callable[[Path], None]
) -> None:
    back_up(data, tmp_path / "kept", now=MADE_AT, copy=True)
    folder = tmp_path / "kept"
    damage(next(folder.glob("blobs/??/*")) if what == "blob" else folder / what)
    with pytest.raises((CorruptDataError, BlobMissingError, InvalidRequestError)):
        restore(folder, tmp_path / "again", now=MADE_AT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "kept"]


def test_a_newer_schema_is_refused(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "kept", now=MADE_AT)
    manifest = tmp_path / "kept" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema_revision": "9999"}))
    with pytest.raises(InvalidRequestError, match="9999, which this program does not know"):
        restore(tmp_path / "kept", tmp_path / "again", now=MADE_AT)


def test_the_copy_is_of_one_moment_while_others_write(data: Path, tmp_path: Path) -> None:
    """Pairs of rows are written together without a pause: a copy has both rows of a pair or neither."""
    store = Store.open(data)

    def pair(connection: Connection, number: int) -> None:
        for half in ("a", "b"):
            name = f"r{number}{half}"
            row = runs.Run(name, "x", "", b"", "0", "0", 1, "finished", "a", NOW, finished_at=1.0)
            runs.add(connection, row)

    writes = [store.writer.submit(pair, number) for number in range(1000)]
    back_up(data, tmp_path / "kept", now=MADE_AT)
    for write in writes:
        write.result()
    store.close()
    with closing(sqlite3.connect(tmp_path / "kept" / "atoll.sqlite3")) as copy:
        found = {row[0] for row in copy.execute("SELECT id FROM runs WHERE id <> ?", (RUN,))}
    assert {name[:-1] + "ab"[name[-1] == "a"] for name in found} == found
