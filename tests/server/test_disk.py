import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.server.disk import Room, free_bytes, storage_error
from atoll.server.errors import StorageFullError

MIB = 1 << 20


def test_a_place_that_is_not_there_yet_is_on_a_disk_all_the_same(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "storage.full"), (errno.EDQUOT, "storage.full"), (5, "x.y")]
)
def test_only_a_full_disk_is_called_full(number: int, code: str) -> None:
    found = storage_error("x.y", "nothing goes", OSError(number, os.strerror(number), "/srv/secret/place"))
    assert found.detail.code == code
    assert "secret" not in str(found.detail)
    assert "/srv/secret/place" in found.logged
