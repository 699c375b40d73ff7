"""The contract of blob stores, tested on each of them."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.server.buckets import BucketPlace, open_bucket, parse_place
from atoll.server.stores import BlobMissingError, BlobStore, DirectoryBlobStore
from atoll.server.stores.bucket_blobs import BucketBlobStore
from atoll.wire.digest import BlobManifest

CHUNK = 1024
CACHE_BYTES = 1 << 20
Opens = Callable[[], BlobStore]


@pytest.fixture(params=["directory", "file", "s3"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opens]:
    """Opens the same blobs again and again, as starts of a server do."""
    if request.param == "directory":
        yield lambda: DirectoryBlobStore(tmp_path / "blobs")
        return
    place: BucketPlace = (
        request.getfixturevalue("s3") if request.param == "s3" else parse_place(f"file://{tmp_path}/bucket")
    )
    yield lambda: BucketBlobStore(tmp_path / "blobs", open_bucket(place), "me", CACHE_BYTES)


@pytest.fixture
def blobs(open_store: Opens) -> BlobStore:
    return open_store()


def put(blobs: BlobStore, content: bytes, piece: int = 1000) -> BlobManifest:
    with blobs.create(chunk_bytes=CHUNK) as writer:
        for at in range(0, len(content), piece):
            writer.write(content[at : at + piece])
        return writer.commit()


def read(blobs: BlobStore, name: str) -> bytes:
    with blobs.open(name) as blob:
        return bytes(blob.read(0, blob.size_bytes))


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 5 * CHUNK])
def test_what_was_put_comes_out_of_a_store_opened_anew(open_store: Opens, size: int) -> None:
    manifest = put(open_store(), content(size))
    again = open_store()
    assert read(again, manifest.name) == content(size)
    assert again.manifest(manifest.name) == manifest
    again.verify(manifest.name)
    with again.open(manifest.name) as blob:
        assert [bytes(blob.chunk(at)) for at in range(manifest.chunk_count)] == [
            content(size)[at : at + CHUNK] for at in range(0, size, CHUNK)
        ]


def test_what_is_set_aside_is_gone_at_once_and_after_a_sweep_everywhere(open_store: Opens) -> None:
    blobs = open_store()
    kept, gone = put(blobs, b"kept").name, put(blobs, b"gone").name
    assert blobs.set_aside(gone)
    assert not blobs.exists(gone)
    assert list(blobs.names()) == list(blobs.stored()) == [kept]
    assert blobs.facts(gone) is None
    with pytest.raises(BlobMissingError), blobs.open(gone):
        pass
    assert blobs.sweep(blobs.pending()) >= 1
    again = open_store()
    assert again.exists(kept)
    assert not again.exists(gone)
    with pytest.raises(BlobMissingError):
        again.manifest(gone)


def test_a_blob_that_was_set_aside_may_be_put_again(open_store: Opens) -> None:
    blobs = open_store()
    name = put(blobs, b"again").name
    blobs.set_aside(name)
    assert put(blobs, b"again").name == name
    blobs.sweep(blobs.pending())
    assert blobs.exists(name)
    assert read(open_store(), name) == b"again"


def test_views_outlive_deletion(blobs: BlobStore) -> None:
    name = put(blobs, content(3000)).name
    with blobs.open(name) as blob:
        view = blob.read(0, 3000)
    blobs.set_aside(name)
    blobs.sweep(blobs.pending())
    assert bytes(view) == content(3000)


def test_what_a_blob_takes_and_when_it_was_made(blobs: BlobStore) -> None:
    name = put(blobs, content(3000)).name
    facts = blobs.facts(name)
    assert facts is not None
    assert facts.stored_bytes > 3000
    assert blobs.stored() == {name: facts}


def test_what_is_not_committed_is_dropped(open_store: Opens) -> None:
    blobs = open_store()
    with blobs.create() as writer:
        writer.write(b"half")
    assert list(open_store().names()) == []


@pytest.mark.parametrize("name", ["", "x", "../" + "0" * 61, "0" * 64, "A" * 64])
def test_a_blob_that_is_not_there(blobs: BlobStore, name: str) -> None:
    with pytest.raises(BlobMissingError), blobs.open(name):
        pass
    with pytest.raises(BlobMissingError):
        blobs.manifest(name)
    with pytest.raises(BlobMissingError):
        blobs.verify(name)


def test_nothing_is_set_aside_while_a_back_up_is_made(blobs: BlobStore) -> None:
    assert isinstance(blobs, DirectoryBlobStore | BucketBlobStore)
    name = put(blobs, b"kept").name
    with blobs.kept():
        assert not blobs.set_aside(name)
    assert blobs.exists(name)
    assert blobs.set_aside(name)


def test_no_problem(blobs: BlobStore) -> None:
    if isinstance(blobs, BucketBlobStore):
        blobs.bucket.create("atoll-owner.json", b'{"owner": "me", "host": "here"}')
    assert blobs.problem() == ""
