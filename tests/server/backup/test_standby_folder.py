"""The data directory of another server."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from atoll.server.backup import make_standby, move_blobs
from atoll.server.buckets import ForeignBucketError, parse_place
from atoll.server.cli.server import server
from atoll.server.errors import InvalidRequestError, StorageError
from atoll.server.identity import Authority
from atoll.server.stores import Store, StoreUnavailableError
from atoll.server.stores.blob_place import BlobSettings, find
from atoll.server.stores.bucket_blobs import BucketBlobStore
from atoll.server.stores.database_place import noted
from atoll.server.stores.standby import Standby
from tests.patience import WAIT_S
from tests.server.stores.samples import NOW


@pytest.fixture
def data(tmp_path: Path, postgresql_url: str) -> Path:
    """A data directory whose database is on a server, and its models in a bucket."""
    made = tmp_path / "data"
    bucket = BlobSettings(parse_place((tmp_path / "bucket").as_uri()))
    (tmp_path / "bucket").mkdir()
    Store.open(made, url=postgresql_url, blob_settings=bucket).close()
    Authority.open(made / "ca", now=NOW)
    (made / "restored.json").write_text(json.dumps({"restored_at": NOW}))
    return made


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_of_the_same_federation_and_readable_by_its_owner_only(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site" / "second"
    files = make_standby(data, folder)
    assert {str(path.relative_to(folder)) for path in files} == {
        "blobs.json",
        "database.json",
        "ca/authority.key",
        "ca/authority.crt",
        "restored.json",
    }
    assert noted(folder) == noted(data)
    authorities = [Authority.open(place / "ca", now=NOW).certificate_pem for place in (data, folder)]
    assert authorities[0] == authorities[1]
    assert {mode(folder), mode(folder / "ca")} == {0o700}
    assert {mode(folder / "database.json"), mode(folder / "ca" / "authority.key")} == {0o600}
    Store.open(folder).close()


def test_a_folder_with_files_is_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(InvalidRequestError, match="is not empty"):
        make_standby(data, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]


def test_models_in_the_directory_are_refused(tmp_path: Path, postgresql_url: str) -> None:
    Store.open(tmp_path / "data", url=postgresql_url).close()
    with pytest.raises(InvalidRequestError, match=r"the models of .* are files in it") as refused:
        make_standby(tmp_path / "data", tmp_path / "second")
    assert "atoll server migrate --blobs" in refused.value.detail.remedy


def test_a_database_in_the_directory_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path / "data").close()
    with pytest.raises(InvalidRequestError, match="is a file in it") as refused:
        make_standby(tmp_path / "data", tmp_path / "second")
    assert "atoll server migrate" in refused.value.detail.remedy
    with pytest.raises(InvalidRequestError, match="not a server's data directory"):
        make_standby(tmp_path / "nothing", tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_if_it_cannot_be_written_nothing_is_left(data: Path, tmp_path: Path) -> None:
    (data / "ca" / "authority.crt").unlink()
    with pytest.raises(StorageError, match="cannot be written"):
        make_standby(data, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_the_command(data: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    said = runner.invoke(server, ["standby", str(tmp_path / "a"), "--data", str(data)])
    assert said.exit_code == 0, said.output
    assert f"atoll server start --data {tmp_path / 'a'}" in said.output
    answer = runner.invoke(server, ["standby", str(tmp_path / "b"), "--data", str(data), "--json"])
    assert json.loads(answer.output)["folder"] == str(tmp_path / "b")


def untold(_done: int, _total: int) -> None:
    """Progress that is not shown."""


def test_models_are_not_moved_while_another_server_of_the_federation_is_at_work(data: Path, tmp_path: Path) -> None:
    make_standby(data, tmp_path / "second")
    bucket = find(data)
    at_work = Store.open(tmp_path / "second")
    with pytest.raises(StoreUnavailableError, match="another server uses the database"):
        move_blobs(data, None, untold)
    at_work.close()
    assert find(data) == bucket
    Store.open(tmp_path / "second").close()


def test_models_are_not_moved_if_another_server_has_begun_to_work_meanwhile(data: Path, tmp_path: Path) -> None:
    make_standby(data, tmp_path / "second")
    bucket = find(data)

    def take_over(done: int, total: int) -> None:
        if done == total:
            Store.open(tmp_path / "second", standby=Standby("second:7400", 0.0, _ignored)).close()

    with pytest.raises(StoreUnavailableError, match="another server has used the database"):
        move_blobs(data, None, take_over)
    assert find(data) == bucket


def test_other_servers_refuse_the_bucket_that_the_models_have_left(data: Path, tmp_path: Path) -> None:
    make_standby(data, tmp_path / "second")
    bucket = find(data)
    assert bucket is not None
    move_blobs(data, None, untold)
    Store.open(data).close()
    with pytest.raises(ForeignBucketError, match="moved out of this place"):
        Store.open(tmp_path / "second")
    move_blobs(data, bucket, untold)
    Store.open(tmp_path / "second").close()


def test_a_server_that_stood_by_refuses_a_bucket_that_was_left_meanwhile(data: Path, tmp_path: Path) -> None:
    make_standby(data, tmp_path / "second")
    waiting = threading.Event()
    at_work = Store.open(data)
    with ThreadPoolExecutor(1) as threads:
        standby = Standby("second:7400", 60.0, lambda _: waiting.set())
        second = threads.submit(Store.open, tmp_path / "second", standby=standby)
        assert waiting.wait(WAIT_S)
        blobs = at_work.blobs
        assert isinstance(blobs, BucketBlobStore)
        blobs.leave()
        at_work.close()
        with pytest.raises(ForeignBucketError, match="moved out of this place"):
            second.result(WAIT_S)


def _ignored(sentence: str) -> None:
    """Ignore messages of the server that takes over."""
