"""A data directory belongs to one place for its blobs, and a place in a bucket to one federation."""

import json
from pathlib import Path

import pytest

from atoll.server.buckets import BucketPlace, ForeignBucketError, open_bucket, parse_place
from atoll.server.errors import CorruptDataError
from atoll.server.stores import DirectoryBlobStore, SchemaError, Store
from atoll.server.stores.blob_place import PLACE_FILE, BlobSettings, choose, find, open_chosen, settle
from atoll.server.stores.bucket_blobs import BucketBlobStore
from tests.server.stores.test_blob_stores import put, read


@pytest.fixture
def place(tmp_path: Path) -> BucketPlace:
    return parse_place(f"file://{tmp_path}/bucket/one")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_blobs_are_in_the_directory_and_need_no_note(data: Path) -> None:
    store = Store.open(data)
    assert isinstance(store.blobs, DirectoryBlobStore)
    store.close()
    assert find(data) is None
    assert not (data / PLACE_FILE).exists()


def test_a_bucket_is_noted_and_then_found_without_being_named(data: Path, s3: BucketPlace) -> None:
    store = Store.open(data, blob_settings=BlobSettings(s3))
    name = put(store.blobs, b"a model").name
    store.close()
    assert find(data) == s3
    note = (data / PLACE_FILE).read_text()
    assert "test-secret" not in note
    assert (data / PLACE_FILE).stat().st_mode & 0o077 == 0
    again = Store.open(data)
    assert isinstance(again.blobs, BucketBlobStore)
    assert read(again.blobs, name) == b"a model"
    again.close()


def test_a_second_process_uses_what_is_noted(data: Path, place: BucketPlace) -> None:
    with pytest.raises(SchemaError, match="does not note"):
        open_chosen(data, BlobSettings(place))
    settle(data, place)
    assert isinstance(open_chosen(data), BucketBlobStore)
    assert isinstance(open_chosen(data, BlobSettings(place)), BucketBlobStore)


def test_a_setting_never_moves_blobs(data: Path, place: BucketPlace, tmp_path: Path) -> None:
    store = Store.open(data)
    put(store.blobs, b"a model")
    store.close()
    with pytest.raises(SchemaError, match=f"the models of {data} are in {data}/blobs") as refused:
        Store.open(data, blob_settings=BlobSettings(place))
    assert f"atoll server migrate --blobs {place.url}" in refused.value.detail.remedy
    other = tmp_path / "other"
    Store.open(other, blob_settings=BlobSettings(place)).close()
    with pytest.raises(SchemaError, match=r"bucket/one, and the settings name .*bucket/two"):
        Store.open(other, blob_settings=BlobSettings(parse_place(f"file://{tmp_path}/bucket/two")))


def test_a_place_of_another_federation_is_refused(data: Path, place: BucketPlace, tmp_path: Path) -> None:
    Store.open(data, blob_settings=BlobSettings(place)).close()
    with pytest.raises(ForeignBucketError, match="another federation keeps its models") as refused:
        Store.open(tmp_path / "other", blob_settings=BlobSettings(place))
    assert "name another bucket or prefix" in refused.value.detail.remedy
    assert find(tmp_path / "other") is None
    Store.open(tmp_path / "other").close()


def test_a_server_killed_while_it_claimed_its_place_knows_its_claim(
    data: Path, place: BucketPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("atoll.server.stores.blob_place.claim", killed)
        with pytest.raises(KeyboardInterrupt):
            settle(data, place)
    assert find(data) is None
    settle(data, place)
    settle(data, place)
    assert find(data) == place


def test_a_bucket_that_lost_its_owner_is_not_taken_for_an_empty_one(data: Path, place: BucketPlace) -> None:
    settle(data, place)
    open_bucket(place).delete(["atoll-owner.json"])
    with pytest.raises(ForeignBucketError, match="has no atoll-owner"):
        settle(data, place)


def test_endpoint_and_region_may_change(data: Path, s3: BucketPlace) -> None:
    settle(data, s3)
    moved = parse_place(s3.url, s3.endpoint, "eu-central-1")
    assert choose(data, moved) == moved
    settle(data, moved)
    assert find(data) == moved


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"blobs": 7}'])
def test_a_note_that_cannot_be_read_is_named(data: Path, text: str) -> None:
    (data / PLACE_FILE).write_text(text)
    with pytest.raises(CorruptDataError, match=PLACE_FILE):
        find(data)


def test_a_note_is_json_that_names_the_place_and_the_owner(data: Path, place: BucketPlace) -> None:
    settle(data, place)
    note = json.loads((data / PLACE_FILE).read_text())
    assert note["blobs"] == place.url
    assert len(note["owner"]) == 32
    assert set(note) == {"blobs", "endpoint", "region", "owner", "claimed"}
