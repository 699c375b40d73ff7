import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from atoll.server.errors import ConflictError, InvalidRequestError, LimitExceededError, StorageError
from atoll.server.ingest.commit import commit_small_update
from atoll.server.ingest.coordinator_api import Disposition, ReportReceipt
from atoll.server.ingest.receiver import RejectedUpdateError
from atoll.server.ingest.records import RECORD_BYTES
from atoll.server.ingest.small_update_files import MOST_FILES, UNFINISHED, whole_path
from atoll.server.ingest.spool import Spool
from tests.server.ingest.test_commit import failing_fsync
from tests.server.ingest.uploads import ALICE, BOB, RUN, SIZE, chunk_of, digest_of, flip, grant, ref, values_of

VALUES = values_of(1)
CHUNK = chunk_of(VALUES, 0, SIZE)
DIGEST = digest_of([CHUNK])
CHUNK_OF_MANY = chunk_of(values_of(MOST_FILES), 0, SIZE)
DIGEST_OF_MANY = digest_of([CHUNK_OF_MANY])


def flaw(spool: Spool, digest: str = DIGEST) -> str:
    return spool.flaw(RUN, 0, 0, ALICE, digest)


def test_it_lies_in_the_spool_like_any_upload(spool: Spool) -> None:
    done = commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    assert (done.digest, done.payload_bytes) == (DIGEST, 4 * SIZE)
    assert done.norm == pytest.approx(float(np.linalg.norm(VALUES.astype(np.float64))))
    at = ref()
    with spool.committed(at.run, at.round, at.attempt, at.participant, DIGEST) as upload:
        (record,) = upload.records
        np.testing.assert_array_equal(np.frombuffer(upload.payload(record), np.float32), VALUES)


def test_the_same_again_is_kept_once(spool: Spool) -> None:
    """The answer was lost, so the participant sends everything again."""
    assert commit_small_update(spool, ref(), grant(), DIGEST, CHUNK) == commit_small_update(
        spool, ref(), grant(), DIGEST, CHUNK
    )
    assert spool.held(RUN).files == 1


def synced_by(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[Path]:
    """The files and folders that a call syncs."""
    synced: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        call()
    return synced


def test_the_same_again_is_compared_and_not_synced_again(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row could not be stored, or its answer was lost."""
    done = commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    assert synced_by(monkeypatch, lambda: commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)) == []
    assert commit_small_update(spool, ref(), grant(), DIGEST, CHUNK) == done
    elsewhere = Spool(spool.root)
    assert synced_by(monkeypatch, lambda: commit_small_update(elsewhere, ref(), grant(), DIGEST, CHUNK)) != []


@pytest.mark.parametrize("faulty", [Path.is_file, Path.is_dir], ids=["file", "folder"])
def test_a_folder_made_again_by_a_report_that_failed_is_synced_with_its_parents_by_the_next(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, faulty: Callable[[Path], bool]
) -> None:
    """Otherwise a power cut could remove the folder's name, and with it acknowledged updates."""
    commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    spool.drop_run(RUN)
    with monkeypatch.context() as patch:
        failing_fsync(patch, faulty)
        with pytest.raises(StorageError):
            commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    synced = synced_by(monkeypatch, lambda: commit_small_update(spool, ref(BOB), grant(), DIGEST, CHUNK))
    assert synced[1:] == [spool.root / RUN / "0.0", spool.root / RUN, spool.root]


def test_who_writes_into_a_folder_that_another_is_just_making_has_its_parents_synced(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    spool.drop_run(RUN)
    synced: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if not synced:  # Alice has made the folder and syncs her file; Bob's report overtakes hers
            synced.append(Path())
            synced.extend(synced_by(monkeypatch, lambda: commit_small_update(spool, ref(BOB), grant(), DIGEST, CHUNK)))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    assert {spool.root / RUN / "0.0", spool.root / RUN, spool.root} <= set(synced)


def test_it_is_one_file_synced_with_its_folders_before_the_commit_returns(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    attempt = spool.root / RUN / "0.0"
    assert synced[0].suffix == UNFINISHED, "a name that is read was there before the sync"
    assert synced[1:] == [attempt, spool.root / RUN, spool.root]
    assert list(attempt.iterdir()) == [whole_path(attempt, ALICE, 0)]


def test_what_cannot_be_synced_is_not_there(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failing_fsync(patch, Path.is_file)
        with pytest.raises(StorageError, match="Input/output error") as caught:
            commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    assert caught.value.detail.retry_after_s is not None
    assert spool.held(RUN).files == 0
    commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    assert flaw(spool) == ""


def test_a_file_that_could_not_be_synced_is_never_acknowledged(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the page cache holds bytes that the disk may lack, and a second fsync succeeds."""
    unsynced: set[int] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_file() and not unsynced:
            unsynced.add(os.fstat(descriptor).st_ino)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    def unlink(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(StorageError):
            commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
        commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    assert unsynced
    assert whole_path(spool.root / RUN / "0.0", ALICE, 0).stat().st_ino not in unsynced
    assert flaw(spool) == ""
    assert spool.drop_through(RUN, (0, 0), ()) == [(0, 0)]
    assert spool.held(RUN).files == 0


def stored_elsewhere_meanwhile(spool: Spool, monkeypatch: pytest.MonkeyPatch, error: OSError | None = None) -> Spool:
    """Another process's spool, which stores the update during the next sync; that sync then fails with ``error``."""
    elsewhere, tries, real = Spool(spool.root), list[int](), os.fsync

    def fsync(descriptor: int) -> None:
        if not tries:
            tries.append(descriptor)
            commit_small_update(elsewhere, ref(), grant(), DIGEST, CHUNK)
            if error is not None:
                raise error
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return elsewhere


def test_a_replay_acknowledged_by_another_process_outlives_the_failed_first_try(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay arrives while the first try waits for its sync, which then fails."""
    elsewhere = stored_elsewhere_meanwhile(spool, monkeypatch, OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(StorageError):
        commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    assert flaw(elsewhere) == ""


def test_two_processes_that_store_the_same_update_keep_it_once(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_elsewhere_meanwhile(spool, monkeypatch)
    commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    assert spool.held(RUN).files == 1
    assert flaw(spool) == ""


@pytest.mark.parametrize("kept_bytes", [7, RECORD_BYTES, RECORD_BYTES + 5], ids=["record", "no payload", "payload"])
def test_a_torn_file_does_not_hide_the_replay_that_was_acknowledged(spool: Spool, kept_bytes: int) -> None:
    commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    torn = whole_path(spool.root / RUN / "0.0", ALICE, 0)
    os.truncate(torn, kept_bytes)
    assert flaw(spool) != ""
    commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    assert torn.stat().st_size == kept_bytes
    assert flaw(spool) == ""
    with spool.committed(RUN, 0, 0, ALICE, DIGEST) as upload:
        (record,) = upload.records
        assert upload.payload(record) == CHUNK.payload


@pytest.mark.parametrize("position", [3, RECORD_BYTES + 3], ids=["record", "payload"])
def test_damage_is_reported(spool: Spool, position: int) -> None:
    commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    flip(whole_path(spool.root / RUN / "0.0", ALICE, 0), position)
    assert "does not match its checksum" in flaw(spool)


def test_another_update_does_not_replace_one_that_may_be_acknowledged(spool: Spool) -> None:
    commit_small_update(spool, ref(), grant(), DIGEST, CHUNK)
    other = chunk_of(values_of(2), 0, SIZE)
    commit_small_update(spool, ref(number=2), grant(), digest_of([other]), other)
    assert flaw(spool) == flaw(spool, digest_of([other])) == ""


def test_different_updates_have_a_limit(spool: Spool) -> None:
    for seed in range(MOST_FILES):
        chunk = chunk_of(values_of(seed), 0, SIZE)
        commit_small_update(spool, ref(), grant(), digest_of([chunk]), chunk)
    with pytest.raises(LimitExceededError) as caught:
        commit_small_update(spool, ref(), grant(), DIGEST_OF_MANY, CHUNK_OF_MANY)
    assert caught.value.detail.code == "upload.unfinished"
    commit_small_update(spool, ref(BOB), grant(), DIGEST, CHUNK)


def test_it_goes_with_its_round_unless_it_is_kept(spool: Spool) -> None:
    for participant in (ALICE, BOB):
        commit_small_update(spool, ref(participant), grant(), DIGEST, CHUNK)
    assert spool.drop_through(RUN, (0, 0), {(0, 0, BOB)}) == []
    assert spool.held(RUN).files == 1
    assert spool.flaw(RUN, 0, 0, BOB, DIGEST) == ""
    assert spool.drop_through(RUN, (0, 0), ()) == [(0, 0)]
    assert spool.held(RUN).files == 0


def test_what_is_not_the_whole_update_is_not_committed(spool: Spool) -> None:
    half = chunk_of(VALUES, 0, SIZE - 1)
    with pytest.raises(InvalidRequestError, match="missing"):
        commit_small_update(spool, ref(), grant(), digest_of([half]), half)
    with pytest.raises(InvalidRequestError, match="reported was"):
        commit_small_update(spool, ref(number=2), grant(), "0" * 64, CHUNK)


def test_it_is_inspected_as_any_chunk(spool: Spool) -> None:
    wrong = VALUES.copy()
    wrong[7] = np.nan
    chunk = chunk_of(wrong, 0, SIZE)
    with pytest.raises(RejectedUpdateError, match="not finite"):
        commit_small_update(spool, ref(), grant(), digest_of([chunk]), chunk)


def test_who_has_reported_stores_nothing_more(spool: Spool) -> None:
    receipt = ReportReceipt(Disposition.COUNTED, DIGEST)
    with pytest.raises(ConflictError):
        commit_small_update(spool, ref(), grant(receipt=receipt), DIGEST, CHUNK)
    assert spool.runs() == []
