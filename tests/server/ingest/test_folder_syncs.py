import os
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.server.ingest.folder_syncs import FolderSyncs, SyncRequest


class Disk:
    """Counts syncs, and does something during the first."""

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
    """It may have begun before the file of the request was there."""
    syncs, late = FolderSyncs(), list[SyncRequest]()
    disk = Disk(lambda: late.extend(syncs.request(tmp_path, 0) for _ in range(3)))
    monkeypatch.setattr(os, "fsync", disk.fsync)
    syncs.request(tmp_path, 0).finish()
    for request in late:
        request.finish()
    assert disk.syncs == 2


def test_a_sync_that_failed_serves_nobody(tmp_path: Path) -> None:
    syncs, folder = FolderSyncs(), tmp_path / "gone"
    requests = [syncs.request(folder, 1) for _ in range(2)]
    for request in requests:
        with pytest.raises(FileNotFoundError):
            request.finish()
    folder.mkdir()
    requests[0].finish()
