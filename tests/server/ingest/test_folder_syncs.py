import os
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.server.ingest.folder_syncs import KEPT, FolderSyncs, SyncRequest


class Disk:
    """Counts syncs, and runs a function during the first."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.syncs = 0
        self._meanwhile = meanwhile

    def fsync(self, _: int) -> None:
        self.syncs += 1
        if self.syncs == 1:
            self._meanwhile()


def test_requests_that_wait_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, syncs = Disk(), FolderSyncs()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    for request in [syncs.request(tmp_path, 0) for _ in range(5)]:
        request.finish()
    assert disk.syncs == 1


def test_a_sync_that_had_begun_serves_no_later_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have begun before the request's file existed."""
    syncs, late = FolderSyncs(), list[SyncRequest]()
    disk = Disk(lambda: late.extend(syncs.request(tmp_path, 0) for _ in range(3)))
    monkeypatch.setattr(os, "fsync", disk.fsync)
    syncs.request(tmp_path, 0).finish()
    for request in late:
        request.finish()
    assert disk.syncs == 2


def test_a_failed_sync_is_reported_to_every_request(tmp_path: Path) -> None:
    syncs, folder = FolderSyncs(), tmp_path / "gone"
    requests = [syncs.request(folder, 1) for _ in range(2)]
    for request in requests:
        with pytest.raises(FileNotFoundError):
            request.finish()
    folder.mkdir()
    requests[0].finish()


def synced_by(syncs: FolderSyncs, folder: Path, monkeypatch: pytest.MonkeyPatch, *, made: bool = False) -> list[Path]:
    """The folders that one request syncs."""
    synced: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink()))
        if made:
            syncs.before_making(folder)
        syncs.request(folder, 1).finish()
    return synced


def test_parents_are_synced_until_they_have_the_folders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs, folder = FolderSyncs(), tmp_path / "attempt"
    folder.mkdir()
    assert synced_by(syncs, folder, monkeypatch) == [folder, tmp_path]
    assert synced_by(syncs, folder, monkeypatch) == [folder]
    assert synced_by(syncs, folder, monkeypatch, made=True) == [folder, tmp_path], "it was made again"
    assert synced_by(syncs, folder, monkeypatch) == [folder]


def test_parents_that_could_not_be_synced_are_synced_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs, folder = FolderSyncs(), tmp_path / "attempt"
    folder.mkdir()
    calls: list[int] = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match=r"^$"):
            syncs.request(folder, 1).finish()
    assert synced_by(syncs, folder, monkeypatch) == [folder, tmp_path]


def test_a_folder_made_again_during_a_sync_has_its_parents_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs, folder, late = FolderSyncs(), tmp_path / "attempt", list[SyncRequest]()
    folder.mkdir()

    def make_again() -> None:
        syncs.before_making(folder)
        late.append(syncs.request(folder, 1))

    disk = Disk(make_again)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    syncs.request(folder, 1).finish()
    late[0].finish()
    assert disk.syncs == 4


def test_a_forgotten_folder_has_its_parents_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs, folder = FolderSyncs(), tmp_path / "attempt"
    folder.mkdir()
    synced_by(syncs, folder, monkeypatch)
    for number in range(KEPT):
        syncs.request(tmp_path / str(number), 1)
    assert synced_by(syncs, folder, monkeypatch) == [folder, tmp_path]
