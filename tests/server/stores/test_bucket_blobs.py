import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from atoll.server.buckets import BucketPlace, BucketRefusedError, BucketUnavailableError, open_bucket, parse_place
from atoll.server.buckets.bucket import PART_BYTES, Bucket
from atoll.server.stores import BlobDamagedError, BlobMissingError, StoreFullError
from atoll.server.stores.bucket_blobs import BucketBlobStore, key_of
from atoll.server.stores.incoming_files import IncomingFile
from tests.object_storage import CREDENTIALS, ObjectStore
from tests.patience import WAIT_S
from tests.server.stores.test_blob_stores import content, put, read

CACHE_BYTES = 1 << 20


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(parse_place(f"file://{tmp_path}/bucket"))


@pytest.fixture
def blobs(tmp_path: Path, bucket: Bucket) -> BucketBlobStore:
    return opened(tmp_path / "cache", bucket)


def opened(cache: Path, bucket: Bucket, most_cached_bytes: int = CACHE_BYTES) -> BucketBlobStore:
    return BucketBlobStore(cache, bucket, "me", most_cached_bytes)


def cached(blobs: BucketBlobStore) -> set[str]:
    return set(blobs.cache.files.names())


def test_a_blob_is_in_the_bucket_before_it_can_be_named(
    blobs: BucketBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_bucket: Bucket, _key: str, path: Path, size_bytes: int) -> None:
        assert path.stat().st_size == size_bytes
        raise BucketUnavailableError("away")

    monkeypatch.setattr(Bucket, "put_file", refuse)
    with pytest.raises(BucketUnavailableError):
        put(blobs, b"never")
    assert cached(blobs) == set()
    assert list(blobs.names()) == []


def test_another_machine_fetches_what_it_reads_once(tmp_path: Path, bucket: Bucket, blobs: BucketBlobStore) -> None:
    name = put(blobs, content(5000)).name
    there = opened(tmp_path / "elsewhere", bucket)
    assert read(there, name) == content(5000)
    bucket.delete([key_of(name)])
    assert read(there, name) == content(5000)


def test_blobs_of_several_parts(s3: BucketPlace, tmp_path: Path) -> None:
    bucket = open_bucket(s3)
    whole = content(2 * PART_BYTES + 77)
    with opened(tmp_path / "a", bucket).create() as writer:
        writer.write(whole)
        name = writer.commit().name
    assert read(opened(tmp_path / "b", bucket), name) == whole


def test_the_cache_keeps_within_its_bound_and_what_was_used_last(tmp_path: Path, bucket: Bucket) -> None:
    blobs = opened(tmp_path / "cache", bucket, 25_000)
    names = [put(blobs, content(10_000 + number)).name for number in range(2)]
    for name in (names[1], names[0]):
        path = blobs.cache.files.path_of(name)
        read(blobs, name)
        assert path.exists()
    newest = put(blobs, content(10_009)).name
    assert cached(blobs) == {names[0], newest}
    assert read(blobs, names[1]) == content(10_001)
    assert len(cached(blobs)) == 2
    assert set(blobs.names()) == {*names, newest}


def test_a_cached_file_that_is_damaged_is_fetched_anew(blobs: BucketBlobStore) -> None:
    name = put(blobs, content(5000)).name
    path = blobs.cache.files.path_of(name)
    raw = bytearray(path.read_bytes())
    raw[2500] ^= 1
    path.write_bytes(raw)
    assert read(blobs, name) == content(5000)
    path.write_bytes(path.read_bytes()[:-1])
    assert read(blobs, name) == content(5000)


def test_a_chunk_damaged_after_opening_is_fetched_anew(blobs: BucketBlobStore) -> None:
    name = put(blobs, content(5000)).name
    with blobs.open(name) as blob, blobs.cache.files.path_of(name).open("r+b") as file:
        file.seek(2500)
        file.write(b"\0\0\0\0")
        file.flush()
        assert b"".join(bytes(blob.chunk(at)) for at in range(5)) == content(5000)


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-1], lambda raw: b"\1" + raw[1:], lambda raw: raw[:7]])
def test_a_truncated_or_foreign_object_never_reaches_the_cache(
    tmp_path: Path, bucket: Bucket, blobs: BucketBlobStore, spoil: Callable[[bytes], bytes]
) -> None:
    name = put(blobs, content(5000)).name
    bucket.put(key_of(name), spoil(bucket.read(key_of(name))))
    there = opened(tmp_path / "elsewhere", bucket)
    with pytest.raises(BlobDamagedError) as error, there.open(name):
        pass
    assert key_of(name) in error.value.where
    assert cached(there) == set()


def test_objects_that_are_no_blobs_are_left_alone(bucket: Bucket, blobs: BucketBlobStore) -> None:
    name = put(blobs, b"mine").name
    for key in ("blobs/readme", f"blobs/00/{name}", f"uploads/{name}"):
        bucket.put(key, b"foreign")
    assert list(blobs.names()) == [name]


def test_a_deletion_that_fails_is_tried_again(blobs: BucketBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    name = put(blobs, b"gone").name
    blobs.set_aside(name)
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise BucketUnavailableError("away")

        patch.setattr(Bucket, "delete", refuse)
        blobs.sweep(blobs.pending())
    assert blobs.bucket.facts(key_of(name)) is not None
    assert not blobs.exists(name)
    blobs.sweep(blobs.pending())
    assert blobs.bucket.facts(key_of(name)) is None


def test_a_blob_written_while_its_deletion_is_on_its_way_survives(
    blobs: BucketBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = put(blobs, b"again").name
    blobs.set_aside(name)
    delete, deleting, may_delete = Bucket.delete, threading.Event(), threading.Event()

    def slow(bucket: Bucket, keys: list[str]) -> None:
        deleting.set()
        assert may_delete.wait(WAIT_S)
        delete(bucket, keys)

    monkeypatch.setattr(Bucket, "delete", slow)
    sweeping = threading.Thread(target=blobs.sweep, args=(blobs.pending(),))
    sweeping.start()
    assert deleting.wait(WAIT_S)
    writing = threading.Thread(target=put, args=(blobs, b"again"))
    writing.start()
    may_delete.set()
    sweeping.join(WAIT_S)
    writing.join(WAIT_S)
    assert blobs.exists(name)
    assert blobs.bucket.facts(key_of(name)) is not None


def test_a_full_disk_costs_cached_blobs_only(blobs: BucketBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    old = put(blobs, content(3000)).name
    append = IncomingFile.append

    def full(file: IncomingFile, piece: memoryview) -> None:
        if cached(blobs):
            raise StoreFullError("full")
        append(file, piece)

    monkeypatch.setattr(IncomingFile, "append", full)
    new = put(blobs, content(4000)).name
    assert cached(blobs) == {new}
    assert read(blobs, old) == content(3000)
    assert cached(blobs) == {old}
    assert read(blobs, new) == content(4000)


def test_a_service_that_ended_is_named_as_the_problem(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    away = parse_place("s3://bucket/prefix", "http://127.0.0.1:9")
    blobs = opened(tmp_path / "cache", open_bucket(away))
    assert blobs.problem().startswith("bucket.unavailable: the object store does not answer")
    gone = parse_place("s3://no-such-bucket/prefix", object_store.endpoint)
    blobs = opened(tmp_path / "cache", open_bucket(gone))
    assert blobs.problem() == "bucket.refused: there is no such bucket"
    with pytest.raises(BucketRefusedError, match="no such bucket"):
        put(blobs, b"nowhere")


def test_two_threads_fetch_a_blob_once(
    tmp_path: Path, bucket: Bucket, blobs: BucketBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = put(blobs, content(5000)).name
    there, pieces, fetched = opened(tmp_path / "elsewhere", bucket), Bucket.pieces, []

    def counted(bucket: Bucket, key: str) -> Iterator[bytes]:
        fetched.append(key)
        yield from pieces(bucket, key)

    monkeypatch.setattr(Bucket, "pieces", counted)
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(read(there, name))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [content(5000)] * 4
    assert fetched == [key_of(name)]


def test_a_download_that_breaks_off_leaves_nothing(
    tmp_path: Path, bucket: Bucket, blobs: BucketBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = put(blobs, content(5000)).name
    there = opened(tmp_path / "elsewhere", bucket)

    def broken(*_: object) -> Iterable[bytes]:
        yield b"first bytes"
        raise BucketUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "pieces", broken)
        with pytest.raises(BucketUnavailableError), there.open(name):
            pass
    assert cached(there) == set()
    assert read(there, name) == content(5000)
    with pytest.raises(BlobMissingError):
        there.pieces("0" * 64).__next__()
