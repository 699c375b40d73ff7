"""A data directory's models go to a bucket and back, with every digest compared, and nothing is deleted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from atoll.server.backup import back_up, move_blobs, restore
from atoll.server.buckets import BucketPlace, ForeignBucketError, open_bucket, parse_place
from atoll.server.cli.doctor import doctor
from atoll.server.cli.server import server
from atoll.server.errors import InvalidRequestError
from atoll.server.stores import BlobDamagedError, BlobMissingError, DirectoryBlobStore, Store, StoreUnavailableError
from atoll.server.stores.blob_place import BlobSettings, find, open_chosen
from atoll.server.stores.bucket_blobs import BucketBlobStore, key_of
from atoll.server.stores.usage import storage_use
from tests.server.backup.test_backup import fill
from tests.server.backup.test_moving import content as rows
from tests.server.stores.samples import NOW


@pytest.fixture
def place(tmp_path: Path) -> BucketPlace:
    return parse_place(f"file://{tmp_path}/bucket")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data")
    return tmp_path / "data"


def contents(data: Path) -> dict[str, bytes]:
    """The content of every model, for a server on this directory."""
    store = open_chosen(data)
    found = {}
    for name in store.names():
        with store.open(name) as blob:
            found[name] = bytes(blob.read(0, blob.size_bytes))
    return found


def empty_cache(data: Path) -> None:
    files = DirectoryBlobStore(data / "blobs")
    for name in list(files.names()):
        files.drop(name)


def untold(_done: int, _total: int) -> None:
    """Progress that is not shown."""


def command(*arguments: str) -> Result:
    return CliRunner().invoke(server, arguments)


def test_there_and_back(data: Path, s3: BucketPlace) -> None:
    before, rows_before = contents(data), rows(data)
    note: list[tuple[int, int]] = []
    gone = move_blobs(data, s3, lambda done, total: note.append((done, total)))
    assert note == [(done, 5) for done in range(6)]
    assert (gone.blobs, gone.copied, gone.target) == (5, 5, str(s3))
    assert find(data) == s3
    empty_cache(data)
    assert contents(data) == before
    empty_cache(data)
    back = move_blobs(data, None, untold)
    assert (back.blobs, back.copied, back.left) == (5, 5, str(s3))
    assert find(data) is None
    assert isinstance(open_chosen(data), DirectoryBlobStore)
    assert contents(data) == before
    assert rows(data) == rows_before
    again = move_blobs(data, s3, untold)
    assert again.copied == 0
    assert contents(data) == before


_KILLED = """
import os, signal, sys
from pathlib import Path
from atoll.server.backup import move_blobs
from atoll.server.buckets import parse_place
def told(done, total):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)
move_blobs(Path(sys.argv[1]), parse_place(sys.argv[2]) if len(sys.argv) > 2 else None, told)
"""


def killed_move(data: Path, *url: str) -> None:
    script = [sys.executable, "-c", _KILLED, str(data), *url]
    assert subprocess.run(script, check=False).returncode == -signal.SIGKILL


def test_a_killed_move_goes_on(data: Path, place: BucketPlace) -> None:
    before = contents(data)
    killed_move(data, place.url)
    assert find(data) is None
    assert contents(data) == before
    assert move_blobs(data, place, untold).copied == 3
    empty_cache(data)
    killed_move(data)
    assert find(data) == place
    assert move_blobs(data, None, untold).copied == 3
    assert contents(data) == before


def test_what_cannot_be_moved_is_refused(data: Path, place: BucketPlace, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"in .*blobs already"):
        move_blobs(data, None, untold)
    with pytest.raises(InvalidRequestError, match="not a server's data directory"):
        move_blobs(tmp_path / "nowhere", place, untold)
    running = Store.open(data)
    with pytest.raises(StoreUnavailableError):
        move_blobs(data, place, untold)
    running.close()
    move_blobs(data, place, untold)
    with pytest.raises(InvalidRequestError, match="already"):
        move_blobs(data, place, untold)
    with pytest.raises(InvalidRequestError, match=r"the models of .* are in file:") as refused:
        move_blobs(data, parse_place(f"file://{tmp_path}/other"), untold)
    assert "--blobs directory" in refused.value.detail.remedy


def test_damage_stops_a_move(data: Path, place: BucketPlace) -> None:
    files = DirectoryBlobStore(data / "blobs")
    path = files.path_of(min(files.names()))
    whole = path.read_bytes()
    path.write_bytes(b"x" + whole[1:])
    with pytest.raises(BlobDamagedError):
        move_blobs(data, place, untold)
    assert find(data) is None
    path.write_bytes(whole)
    move_blobs(data, place, untold)
    bucket, name = open_bucket(place), path.name
    bucket.put(key_of(name), whole[:-1])
    empty_cache(data)
    with pytest.raises(BlobDamagedError):
        move_blobs(data, None, untold)
    assert find(data) == place


def test_a_back_up_has_the_models_of_a_bucket_and_restores_into_a_directory(
    data: Path, place: BucketPlace, tmp_path: Path
) -> None:
    before = contents(data)
    move_blobs(data, place, untold)
    empty_cache(data)
    made = back_up(data, tmp_path / "kept", now=NOW)
    assert len(made.blobs) == 4
    restore(tmp_path / "kept", tmp_path / "restored", now=NOW)
    assert find(tmp_path / "restored") is None
    found = contents(tmp_path / "restored")
    assert found == {name: before[name] for name in made.blobs}
    with pytest.raises(ForeignBucketError, match="another federation"):
        move_blobs(tmp_path / "restored", place, untold)
    open_bucket(place).delete([key_of(made.blobs[0])])
    with pytest.raises(BlobMissingError):
        back_up(data, tmp_path / "second", now=NOW)


def test_the_command(data: Path, s3: BucketPlace) -> None:
    given = ("migrate", "--data", str(data))
    for wrong in ((), ("--blobs", s3.url, "--database", "sqlite")):
        done = command(*given, *wrong)
        assert done.exit_code == 2
        assert "name what to move" in done.output
    done = command(*given, "--blobs", s3.url, "--blobs-endpoint", s3.endpoint)
    assert done.exit_code == 0, done.output
    assert f"5 models copied from {data}/blobs to {s3}" in done.output
    done = command(*given, "--blobs", "directory", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["blobs"], found["copied"], found["left"]) == (5, 0, str(s3))


def test_storage_and_doctor_know_the_bucket(data: Path, s3: BucketPlace) -> None:
    move_blobs(data, s3, untold)
    held = {(one.kind, one.elsewhere): one.count for one in storage_use(data).held}
    assert held["models", True] == 3
    assert held["cached models", False] == 5
    open_bucket(s3).put("uploads/raaaaaaaaaaaa/0.0/paaaaaaaaaaaa/x", b"an update")
    assert [one.run for one in storage_use(data).held if one.kind == "uploads" and one.elsewhere] == ["raaaaaaaaaaaa"]
    assert "in the bucket" in command("storage", "--data", str(data)).output
    findings = json.loads(CliRunner().invoke(doctor, ["--data", str(data), "--json"]).stdout)
    assert [
        (one["status"], "5 models and states" in one["message"]) for one in findings if one["check"] == "bucket"
    ] == [("ok", True)]
    open_bucket(s3).delete(["atoll-owner.json"])
    findings = json.loads(CliRunner().invoke(doctor, ["--data", str(data), "--json"]).stdout)
    assert [one["status"] for one in findings if one["check"] == "bucket"] == ["fail"]


def test_a_new_server_in_a_bucket_keeps_no_model_in_its_directory_alone(tmp_path: Path, place: BucketPlace) -> None:
    store = Store.open(tmp_path / "new", blob_settings=BlobSettings(place))
    assert isinstance(store.blobs, BucketBlobStore)
    with store.blobs.create() as writer:
        writer.write(b"a model")
        name = writer.commit().name
    store.close()
    assert open_bucket(place).facts(key_of(name)) is not None
