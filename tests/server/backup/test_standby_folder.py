"""The data directory of a further server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from atoll.server.backup import make_standby
from atoll.server.buckets import parse_place
from atoll.server.cli.server import server
from atoll.server.errors import InvalidRequestError, StorageError
from atoll.server.identity import Authority
from atoll.server.stores import Store
from atoll.server.stores.blob_place import BlobSettings
from atoll.server.stores.database_place import noted
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
    with pytest.raises(InvalidRequestError, match="no server's data directory"):
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
