import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.server.errors import InvalidRequestError, LimitExceededError, StorageError, TooLateError
from atoll.server.ingest import commit
from atoll.server.ingest.commit import commit_upload
from atoll.server.ingest.spool import Spool
from atoll.wire.chunks import Chunk, ElementRange, header_of
from atoll.wire.encoding import Encoding
from tests.server.ingest.uploads import ALICE, RUN, SIZE, chunk_of, chunks_of, digest_of, ref, values_of, write

VALUES = values_of(1)
CHUNKS = chunks_of(VALUES)


def failing_fsync(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Path], bool]) -> None:
    """fsync fails for the files that ``fails`` names."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if fails(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_whole_upload_is_measured(spool: Spool) -> None:
    write(spool, ref(), CHUNKS)
    done = commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))
    assert done == commit.DurableUpload(digest_of(CHUNKS), 4 * SIZE, (2.0 * len(CHUNKS)) ** 0.5)


def test_everything_is_synced_before_the_commit_returns(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, list, and every folder on the way to it; the list is renamed only after it was synced."""
    synced: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    data = write(spool, ref(), CHUNKS)
    monkeypatch.setattr(os, "fsync", fsync)
    commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))
    folder = spool.folder(ref())
    assert synced[0] == data
    assert synced[1].parent == folder
    assert set(synced[2:]) >= {folder, folder.parent, folder.parent.parent, spool.root / RUN, spool.root}


@pytest.mark.parametrize(
    ("lacking", "hole"), [(slice(1), "0 to 99"), (slice(5, 6), "500 to 599"), (slice(9, 10), "900")]
)
def test_a_hole_is_named(spool: Spool, lacking: slice, hole: str) -> None:
    sent = [chunk for chunk in CHUNKS if chunk not in CHUNKS[lacking]]
    write(spool, ref(), sent)
    with pytest.raises(InvalidRequestError, match=hole) as caught:
        commit_upload(spool, ref(), SIZE, digest_of(sent))
    assert caught.value.detail.code == "upload.incomplete"


def test_an_upload_of_nothing_is_incomplete(spool: Spool) -> None:
    with pytest.raises(InvalidRequestError, match="0 to 999"):
        commit_upload(spool, ref(), SIZE, digest_of([]))


def test_conflicting_chunks_are_not_chosen_between(spool: Spool) -> None:
    write(spool, ref(), CHUNKS)
    write(spool, ref(), [chunk_of(values_of(2), 300, 400)])
    with pytest.raises(InvalidRequestError, match="are in the update twice") as caught:
        commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))
    assert caught.value.detail.code == "upload.incomplete"
    assert "new upload_id" in caught.value.detail.remedy


def test_overlapping_chunks_are_refused(spool: Spool) -> None:
    write(spool, ref(), [*CHUNKS, chunk_of(VALUES, 350, 450)])
    with pytest.raises(InvalidRequestError, match="are in the update twice"):
        commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))


def test_another_update_than_the_reported_one_is_refused(spool: Spool) -> None:
    write(spool, ref(), CHUNKS)
    with pytest.raises(InvalidRequestError) as caught:
        commit_upload(spool, ref(), SIZE, digest_of(chunks_of(values_of(2))))
    assert caught.value.detail.code == "upload.digest"
    with pytest.raises(InvalidRequestError):
        commit_upload(spool, ref(), SIZE, "../../x")


def test_a_failed_fsync_commits_nothing_and_is_not_believed_later(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may drop pages that it could not write and then report success: the data must be sent again."""
    write(spool, ref(), CHUNKS)
    with monkeypatch.context() as patch:
        failing_fsync(patch, lambda path: path.suffix == ".data")
        with pytest.raises(StorageError, match="Input/output error") as caught:
            commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))
    assert caught.value.detail.retry_after_s is not None
    assert spool.flaw(RUN, 0, 0, ALICE, digest_of(CHUNKS)) != ""
    with pytest.raises(InvalidRequestError, match="0 to 999"):
        commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))
    write(spool, ref(), CHUNKS)
    commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))
    assert spool.flaw(RUN, 0, 0, ALICE, digest_of(CHUNKS)) == ""


def test_a_list_that_cannot_be_written_commits_nothing(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    write(spool, ref(), CHUNKS)
    before = set(spool.folder(ref()).iterdir())
    with monkeypatch.context() as patch:
        failing_fsync(patch, lambda path: path.suffix == "" and path.is_file())
        with pytest.raises(StorageError):
            commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))
    assert set(spool.folder(ref()).iterdir()) == before
    assert spool.flaw(RUN, 0, 0, ALICE, digest_of(CHUNKS)) != ""
    commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))


def test_a_round_that_ends_meanwhile_is_too_late(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its uploads are removed while one of them is being committed."""
    write(spool, ref(), CHUNKS)
    commit_to_disk = spool.commit

    def removed(*args: Any) -> str:
        spool.drop_run(RUN)
        return commit_to_disk(*args)

    monkeypatch.setattr(spool, "commit", removed)
    with pytest.raises(TooLateError, match="over"):
        commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))


def test_scattered_chunks_have_a_limit(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "MAX_BLOCKS", 9)
    payload = np.zeros(10, np.float32).tobytes()
    target = ElementRange(0, 1, 2, 10)
    write(spool, ref(), [Chunk(header_of(target, Encoding.FLOAT32, payload), memoryview(payload), None)])
    with pytest.raises(LimitExceededError) as caught:
        commit_upload(spool, ref(), 20, "0" * 64)
    assert caught.value.detail.code == "upload.blocks"


def test_an_update_of_a_part_is_whole_with_its_own_elements(spool: Spool) -> None:
    part = CHUNKS[3:7]
    write(spool, ref(), part)
    with pytest.raises(InvalidRequestError, match="elements 700 to 999 are missing"):
        commit_upload(spool, ref(), SIZE - 300, digest_of(part), 300)
    with pytest.raises(InvalidRequestError, match="has element 300; the round asks for elements from 400 on"):
        commit_upload(spool, ref(), 300, digest_of(part), 400)
    done = commit_upload(spool, ref(), 400, digest_of(part), 300)
    assert (done.digest, done.payload_bytes) == (digest_of(part), 1600)
