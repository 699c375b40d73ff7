"""``atoll doctor`` checks a bucket before the first start; ``backup/test_moving_blobs.py`` has a bucket in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.server.buckets import BucketPlace, parse_place
from atoll.server.cli.check_bucket import bucket as checked
from atoll.server.cli.checks import Status
from atoll.server.stores.blob_place import settle


@pytest.fixture
def place(tmp_path: Path) -> BucketPlace:
    (tmp_path / "shared").mkdir()
    return parse_place(f"file://{tmp_path}/shared/atoll")


def test_without_a_bucket_nothing_is_checked(tmp_path: Path) -> None:
    assert list(checked(tmp_path / "missing")) == []


def test_a_bucket_that_the_first_start_will_claim(tmp_path: Path, place: BucketPlace) -> None:
    (found,) = checked(tmp_path / "missing", place)
    assert found.status is Status.OK
    assert "the first start claims" in found.message
    assert not (tmp_path / "missing").exists()
    assert not [file for file in (tmp_path / "shared").rglob("*") if file.is_file()]


def test_a_bucket_of_another_federation(tmp_path: Path, place: BucketPlace) -> None:
    other, own = tmp_path / "other", tmp_path / "own"
    other.mkdir()
    settle(other, place)
    (found,) = checked(own, place)
    assert found.status is Status.FAIL
    assert "belongs to a federation already" in found.message
    assert [one.status for one in checked(other, place)] == [Status.OK]


def test_a_directory_with_another_bucket(tmp_path: Path, place: BucketPlace) -> None:
    own = tmp_path / "own"
    own.mkdir()
    settle(own, place)
    (found,) = checked(own, parse_place(f"file://{tmp_path}/shared/elsewhere"))
    assert found.status is Status.FAIL
    assert "the settings name" in found.message


def test_a_service_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    (found,) = checked(tmp_path, parse_place("s3://models/atoll", "http://127.0.0.1:9"))
    assert found.status is Status.FAIL
