import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.server.disk.space import Room, free_bytes, storage_error
from atoll.server.errors import StorageFullError
from tests.patience import WAIT_S

MIB = 1 << 20


def test_a_folder_that_does_not_exist_yet_has_a_disk(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)


def test_work_that_leaves_the_reserve_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * MIB))
    Room(tmp_path, 4 * MIB).require("it", 6 * MIB)
    assert Room(tmp_path, 10 * MIB).shortage() == ""


def test_work_that_does_not_is_refused_with_what_it_needs_and_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * MIB))
    with pytest.raises(StorageFullError) as refused:
        Room(tmp_path, 4 * MIB).require("this model", 6 * MIB + 1)
    detail = refused.value.detail
    assert detail.code == "storage.full"
    assert "it needs 6.0 MiB, the server's disk has 10.0 MiB free and keeps 4.0 MiB in reserve" in detail.message
    assert detail.retry_after_s is not None
    assert str(tmp_path) not in str(detail)
    assert str(tmp_path) in refused.value.logged


def test_a_disk_that_does_not_answer_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(shutil, "disk_usage", fail)
    assert "Input/output error" in Room(tmp_path, 0).shortage()


class Kept:
    """Recycled files with this total size."""

    def __init__(self, disk: SimpleNamespace, size: int) -> None:
        self.disk = disk
        self.size = size

    def stored_bytes(self) -> int:
        return self.size

    def clear(self) -> None:
        if self.size < 0:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        self.disk.free += self.size
        self.size = 0


class TestSpare:
    @pytest.fixture
    def disk(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        disk = SimpleNamespace(free=4 * MIB)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
        return disk

    def test_it_is_given_back_before_work_is_refused(self, tmp_path: Path, disk: SimpleNamespace) -> None:
        spare = [Kept(disk, 3 * MIB), Kept(disk, 3 * MIB)]
        room = Room(tmp_path, 4 * MIB, spare)
        room.require("it")
        assert [one.size for one in spare] == [3 * MIB, 3 * MIB]
        assert room.shortage(6 * MIB) == ""
        room.require("it", 6 * MIB)
        assert [one.size for one in spare] == [0, 0]

    def test_it_is_given_back_even_if_it_is_not_enough(self, tmp_path: Path, disk: SimpleNamespace) -> None:
        spare = Kept(disk, MIB)
        room = Room(tmp_path, 4 * MIB, [spare])
        assert "has 5.0 MiB free" in room.shortage(2 * MIB)
        with pytest.raises(StorageFullError, match=r"has 5\.0 MiB free"):
            room.require("it", 2 * MIB)
        assert spare.size == 0

    def test_a_request_while_another_thread_frees_space_is_not_refused(
        self, tmp_path: Path, disk: SimpleNamespace
    ) -> None:
        """Two threads find the disk short, and only one of them can remove each file."""
        clearing, go_on = threading.Event(), threading.Event()

        class Slow(Kept):
            def clear(self) -> None:
                size, self.size = self.size, 0
                if size:
                    clearing.set()
                    assert go_on.wait(WAIT_S)
                    self.disk.free += size

        room = Room(tmp_path, 4 * MIB, [Slow(disk, 6 * MIB)])
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(room.require, "it", 6 * MIB)
            assert clearing.wait(WAIT_S)
            second = threads.submit(room.require, "it", 6 * MIB)
            done, _ = wait([second], timeout=0.2)
            go_on.set()
            first.result(WAIT_S)
            second.result(WAIT_S)
        assert not done

    def test_what_cannot_be_given_back_is_no_room(
        self, tmp_path: Path, disk: SimpleNamespace, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(StorageFullError):
            Room(tmp_path, 4 * MIB, [Kept(disk, -1)]).require("it", MIB)
        assert "Read-only" in caplog.text


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "storage.full"), (errno.EDQUOT, "storage.full"), (5, "x.y")]
)
def test_only_a_full_disk_is_called_full(number: int, code: str) -> None:
    found = storage_error("x.y", "nothing goes", OSError(number, os.strerror(number), "/srv/secret/place"))
    assert found.detail.code == code
    assert "secret" not in str(found.detail)
    assert "/srv/secret/place" in found.logged
