"""Acknowledged uploads are in the bucket, and another machine with an empty spool reads the same bits."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from atoll.server.buckets import BucketPlace, BucketUnavailableError, open_bucket, parse_place
from atoll.server.buckets.bucket import Bucket
from atoll.server.errors import NotFoundError
from atoll.server.ingest import bucket_uploads
from atoll.server.ingest.bucket_uploads import BucketUploads, CommittedKey
from atoll.server.ingest.commit import commit_small_update, commit_upload
from atoll.server.ingest.moving_uploads import fetch_uploads, held_here, put_uploads
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.upload_ref import UploadRef
from atoll.wire.chunks import Chunk
from tests.server.ingest.test_spool import read_back
from tests.server.ingest.uploads import (
    ALICE,
    BOB,
    RUN,
    SIZE,
    chunk_of,
    chunks_of,
    committed,
    digest_of,
    grant,
    ref,
    values_of,
    write,
)

VALUES = values_of(1)
SMALL = chunk_of(VALUES, 0, SIZE)


@pytest.fixture(params=["file", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    place: BucketPlace = (
        request.getfixturevalue("s3") if request.param == "s3" else parse_place(f"file://{tmp_path}/bucket")
    )
    return open_bucket(place)


@pytest.fixture
def here(tmp_path: Path, bucket: Bucket) -> Spool:
    return Spool(tmp_path / "here", bucket=BucketUploads(bucket))


@pytest.fixture
def there(tmp_path: Path, bucket: Bucket) -> Spool:
    return Spool(tmp_path / "there", bucket=BucketUploads(bucket))


def small(spool: Spool, upload: UploadRef, chunk: Chunk = SMALL) -> str:
    digest = digest_of([chunk])
    commit_small_update(spool, upload, grant(), digest, chunk)
    return digest


def large(spool: Spool, upload: UploadRef, chunks: Sequence[Chunk]) -> str:
    """An upload over two streams."""
    write(spool, upload, chunks[::2])
    write(spool, upload, chunks[1::2])
    return commit_upload(spool, upload, SIZE, digest_of(chunks)).digest


def keys(spool: Spool) -> set[CommittedKey]:
    assert spool.bucket is not None
    return {key for key, _ in spool.bucket.listed()}


def flaw(spool: Spool, upload: UploadRef, digest: str) -> str:
    return spool.flaw(upload.run, upload.round, upload.attempt, upload.participant, digest)


def test_a_large_upload_is_read_elsewhere(here: Spool, there: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = large(here, ref(), chunks_of(VALUES))
    assert flaw(there, ref(), digest) == ""
    assert read_back(there, ref(), digest) == VALUES.tolist()
    monkeypatch.setattr(bucket_uploads, "_WHOLE_BYTES", 0)
    digest = large(here, ref(BOB), chunks_of(values_of(2), 70))
    assert read_back(there, ref(BOB), digest) == values_of(2).tolist()


def test_a_small_update_is_read_elsewhere(here: Spool, there: Spool) -> None:
    digest = small(here, ref())
    assert read_back(there, ref(), digest) == VALUES.tolist()
    assert small(there, ref()) == digest


def test_nothing_is_acknowledged_that_the_bucket_does_not_have(here: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = chunks_of(VALUES)
    write(here, ref(), chunks)
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise BucketUnavailableError("away")

        patch.setattr(Bucket, "put", refuse)
        with pytest.raises(BucketUnavailableError):
            commit_upload(here, ref(), SIZE, digest_of(chunks))
        with pytest.raises(BucketUnavailableError):
            small(here, ref(BOB))
        with pytest.raises(BucketUnavailableError):
            small(here, ref(BOB))
    assert keys(here) == set()
    digest, whole = commit_upload(here, ref(), SIZE, digest_of(chunks)).digest, small(here, ref(BOB))
    assert keys(here) == {CommittedKey(RUN, 0, 0, ALICE, digest), CommittedKey(RUN, 0, 0, BOB, whole)}


def test_objects_go_with_their_round(here: Spool, there: Spool) -> None:
    kept = small(here, ref(BOB, at=(1, 0)))
    for number, at in enumerate([(0, 0), (0, 1), (1, 0), (2, 0)]):
        small(here, ref(number=number, at=at), chunk_of(values_of(number), 0, SIZE))
    there.drop_through(RUN, (1, 0), {(1, 0, BOB)})
    assert {(key.round, key.attempt, key.participant) for key in keys(here)} == {(1, 0, BOB), (2, 0, ALICE)}
    assert read_back(there, ref(BOB, at=(1, 0)), kept) == VALUES.tolist()
    assert there.runs() == [RUN]
    there.drop_run(RUN)
    assert keys(here) == set()
    assert there.runs() == []


def test_what_is_damaged_here_comes_from_the_bucket(here: Spool) -> None:
    digest, whole = large(here, ref(), chunks_of(VALUES)), small(here, ref(BOB))
    for path in [path for path in here.root.rglob("*") if path.suffix in {".data", ".whole"}]:
        raw = bytearray(path.read_bytes())
        raw[-5] ^= 1
        path.write_bytes(raw)
    assert flaw(here, ref(), digest) == ""
    assert flaw(here, ref(BOB), whole) == ""
    assert read_back(here, ref(), digest) == read_back(here, ref(BOB), whole) == VALUES.tolist()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[1:],
        lambda raw: b"\1\2" + raw[2:],
        lambda raw: raw[:3],
        lambda raw: raw[:0],
        lambda raw: _under_another_id(raw, b"../" + 29 * b"x"),
    ],
)
def test_a_spoiled_object_is_not_taken(
    here: Spool, there: Spool, bucket: Bucket, spoil: Callable[[bytes], bytes]
) -> None:
    digest = small(here, ref())
    key = CommittedKey(RUN, 0, 0, ALICE, digest).key
    bucket.put(key, spoil(bucket.read(key)))
    assert "acknowledged" in flaw(there, ref(), digest)
    assert not [path for path in there.root.rglob("*") if path.is_file()]


def _under_another_id(raw: bytes, upload_id: bytes) -> bytes:
    """The same update with an id for a folder that is not the participant's."""
    (length,) = struct.unpack("<Q", raw[-8:])
    start = len(raw) - 8 - length
    return raw[:start] + upload_id + raw[start + len(upload_id) :]


def test_what_is_nowhere_is_missing(there: Spool) -> None:
    with pytest.raises(NotFoundError), there.committed(RUN, 0, 0, ALICE, "0" * 64):
        pass


def test_a_spool_without_a_bucket_copies_nothing(tmp_path: Path, here: Spool) -> None:
    alone = Spool(tmp_path / "alone")
    committed(alone, ref(), chunks_of(VALUES))
    small(alone, ref(BOB))
    assert keys(here) == set()


def test_a_spool_lists_its_committed_uploads(here: Spool, there: Spool) -> None:
    digest, whole = large(here, ref(), chunks_of(VALUES)), small(here, ref(BOB, at=(3, 1)))
    expected = {CommittedKey(RUN, 0, 0, ALICE, digest), CommittedKey(RUN, 3, 1, BOB, whole)}
    assert set(held_here(here)) == keys(here) == expected
    assert set(held_here(there)) == set()
    shutil.rmtree(here.root / RUN)
    assert set(held_here(here)) == set()


def test_uploads_move_into_a_bucket_and_out_of_it(tmp_path: Path, bucket: Bucket, there: Spool) -> None:
    alone = Spool(tmp_path / "alone")
    digest, whole = large(alone, ref(), chunks_of(VALUES)), small(alone, ref(BOB))
    small(alone, ref(BOB, at=(1, 0)))
    (path,) = alone.root.glob(f"{RUN}/1.0/*")
    path.write_bytes(path.read_bytes()[:-1])
    moving = Spool(alone.root, bucket=BucketUploads(bucket))
    assert put_uploads(moving) == 2
    assert {key.round for key in keys(moving)} == {0}
    assert fetch_uploads(there) == 2
    there.bucket = None
    assert read_back(there, ref(), digest) == read_back(there, ref(BOB), whole) == VALUES.tolist()


def test_a_standby_puts_uploads_where_the_active_server_finds_them_and_deletes_none(
    tmp_path: Path, bucket: Bucket, there: Spool
) -> None:
    """Its orders may be outdated: a run that it should drop may have begun since."""
    standby = Spool(tmp_path / "standby", bucket=BucketUploads(bucket).of_others)
    digest = small(standby, ref())
    standby.drop_run(RUN)
    assert standby.runs() == []
    assert there.runs() == [RUN]
    assert flaw(there, ref(), digest) == ""
