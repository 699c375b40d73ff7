import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.server.disk import recycling
from atoll.server.disk.recycling import SMALLEST_BYTES, FreeFiles
from tests.patience import WAIT_S

SIZE = SMALLEST_BYTES
OLD = b"\xaa" * SIZE


@pytest.fixture
def free(tmp_path: Path) -> FreeFiles:
    return FreeFiles(tmp_path / "free", scrub=False)


@pytest.fixture
def spent(tmp_path: Path) -> Path:
    return made(tmp_path / "spent")


def made(path: Path, content: bytes = OLD) -> Path:
    path.write_bytes(content)
    return path


def lying(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "free").glob("*"))


def open_files(folder: Path) -> list[Path]:
    """The files below the folder that this process has open; other threads' sockets and folders do not count."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(descriptor.readlink())
    return [path for path in found if path.is_relative_to(folder) and not path.is_dir()]


def taken(free: FreeFiles, wanted_bytes: int, to: Path) -> Iterator[int]:
    descriptor = free.take(wanted_bytes, to)
    if descriptor is not None:
        os.close(descriptor)
        yield descriptor


def test_a_file_goes_to_the_next_that_needs_one(free: FreeFiles, spent: Path, tmp_path: Path) -> None:
    inode = spent.stat().st_ino
    free.give(spent)
    assert not spent.exists()
    descriptor = free.take(SIZE, tmp_path / "next")
    assert descriptor is not None
    assert (tmp_path / "next").stat().st_ino == inode == os.fstat(descriptor).st_ino
    assert lying(tmp_path) == []
    os.close(descriptor)


def test_a_taken_file_is_locked(free: FreeFiles, spent: Path, tmp_path: Path) -> None:
    free.give(spent)
    descriptor = free.take(SIZE, tmp_path / "next")
    assert descriptor is not None
    with (tmp_path / "next").open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(descriptor)


@pytest.mark.parametrize("kind", [fcntl.LOCK_SH, fcntl.LOCK_EX])
def test_a_file_in_use_is_unlinked_and_not_recycled(free: FreeFiles, spent: Path, tmp_path: Path, kind: int) -> None:
    """A late writer must not write to a file with a new owner, and a reader must not find other bytes."""
    with spent.open("rb") as user:
        fcntl.flock(user, kind)
        free.give(spent)
        assert not spent.exists()
        assert lying(tmp_path) == []
        assert user.read() == OLD


def test_a_file_with_a_second_name_is_not_written_over(free: FreeFiles, spent: Path, tmp_path: Path) -> None:
    """Backups may link files instead of copying them."""
    (tmp_path / "backup").hardlink_to(spent)
    free.give(spent)
    assert lying(tmp_path) == []
    assert (tmp_path / "backup").read_bytes() == OLD


def test_small_files_are_not_worth_it(free: FreeFiles, tmp_path: Path) -> None:
    free.give(made(tmp_path / "small", OLD[:-1]))
    assert lying(tmp_path) == []
    assert list(taken(free, SIZE - 1, tmp_path / "next")) == []


def test_a_file_is_not_wasted_on_something_much_smaller(free: FreeFiles, tmp_path: Path) -> None:
    free.give(made(tmp_path / "large", OLD * 3))
    assert free.take(SIZE, tmp_path / "next") is None
    assert not (tmp_path / "next").exists()
    assert len(list(taken(free, 2 * SIZE, tmp_path / "next"))) == 1


def test_what_is_kept_is_bounded(free: FreeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "MOST_BYTES", 2 * SIZE)
    for number in range(3):
        free.give(made(tmp_path / str(number)))
    assert len(lying(tmp_path)) == 2


def test_a_disk_that_runs_short_gets_everything_back(
    free: FreeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free.give(made(tmp_path / "one"))
    monkeypatch.setattr(recycling, "free_bytes", lambda _: recycling.RESERVE_BYTES - 1)
    free.give(made(tmp_path / "other"))
    assert lying(tmp_path) == []
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("beyond", "kept"), [(2 * SIZE, 2), (2 * SIZE - 1, 1)])
def test_no_more_is_kept_than_is_free_besides(
    free: FreeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int, kept: int
) -> None:
    monkeypatch.setattr(recycling, "free_bytes", lambda _: recycling.RESERVE_BYTES + beyond)
    for number in range(3):
        free.give(made(tmp_path / str(number)))
    assert len(lying(tmp_path)) == kept


def ended(free: FreeFiles) -> None:
    """Wait until the thread that maintains the files has nothing left to do."""
    keeper = free._keeper
    if keeper is not None:
        keeper.join(WAIT_S)
        assert not keeper.is_alive()


def test_old_bytes_are_written_over_soon(spent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "SCRUB_AFTER_S", 0.0)
    scrubbed = threading.Event()
    rename = Path.rename

    def note(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        if Path(target).suffix == ".clean":
            scrubbed.set()
        return renamed

    monkeypatch.setattr(Path, "rename", note)
    free = FreeFiles(tmp_path / "free", scrub=True)
    free.give(spent)
    assert scrubbed.wait(WAIT_S)
    (found,) = lying(tmp_path)
    assert found.read_bytes() == bytes(SIZE)


def test_what_a_killed_process_left_is_scrubbed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "free").mkdir()
    made(tmp_path / "free" / "left")
    monkeypatch.setattr(recycling, "SCRUB_AFTER_S", 0.0)
    monkeypatch.setattr(recycling, "KEEP_S", 0.5)
    ended(FreeFiles(tmp_path / "free", scrub=True))
    assert lying(tmp_path) == []


def test_closing_leaves_no_files(spent: Path, tmp_path: Path) -> None:
    free = FreeFiles(tmp_path / "free", scrub=True)
    free.give(spent)
    free.close()
    assert lying(tmp_path) == []
    ended(free)
    free.give(made(tmp_path / "late"))
    assert lying(tmp_path) == []
    assert not (tmp_path / "late").exists()


def test_closing_does_not_wait_for_scrubbing(spent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server must stop quickly: a half-scrubbed file is removed as it is."""
    monkeypatch.setattr(recycling, "SCRUB_AFTER_S", 0.0)
    monkeypatch.setattr(recycling, "_PIECE", bytes(SIZE // 4))
    begun, go_on, pieces = threading.Event(), threading.Event(), []

    def write(_: int, __: memoryview, position: int) -> None:
        pieces.append(position)
        begun.set()
        assert go_on.wait(WAIT_S)

    monkeypatch.setattr(recycling, "write_at", write)
    free = FreeFiles(tmp_path / "free", scrub=True)
    free.give(spent)
    assert begun.wait(WAIT_S)
    closing = threading.Thread(target=free.close)
    with free._wake:
        closing.start()
        free._wake.wait_for(lambda: free._closed, WAIT_S)
    go_on.set()
    closing.join(WAIT_S)
    assert pieces == [0]
    assert lying(tmp_path) == []


def test_a_disk_that_refuses_while_the_server_stops_does_not_keep_it(
    free: FreeFiles, spent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free.give(spent)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuse)
    free.close()
    assert len(lying(tmp_path)) == 1


def test_unused_files_are_removed(spent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "KEEP_S", 0.0)
    free = FreeFiles(tmp_path / "free", scrub=False)
    free.give(spent)
    ended(free)
    assert lying(tmp_path) == []


def test_two_never_get_the_same_file(free: FreeFiles, tmp_path: Path) -> None:
    for number in range(20):
        free.give(made(tmp_path / str(number)))
    got: list[int] = []

    def take(who: int) -> None:
        for number in range(20):
            descriptor = free.take(SIZE, tmp_path / f"{who}-{number}")
            if descriptor is not None:
                got.append(os.fstat(descriptor).st_ino)
                os.close(descriptor)

    threads = [threading.Thread(target=take, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 20


def test_a_disk_that_fails_for_a_moment_does_not_end_the_scrubbing(
    spent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither listing the files nor removing one fails permanently after a disk error."""
    monkeypatch.setattr(recycling, "SCRUB_AFTER_S", 0.0)
    monkeypatch.setattr(recycling, "KEEP_S", 0.0)
    monkeypatch.setattr(recycling, "RETRY_S", 0.01)
    failing = iter([True, True])
    free = FreeFiles(tmp_path / "free", scrub=True)
    unlink, ages = Path.unlink, FreeFiles._ages

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if next(failing, False):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(self, missing_ok=missing_ok)

    unreadable = iter([True])

    def fail(self: FreeFiles) -> Iterator[tuple[Path, float]]:
        if next(unreadable, False):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return ages(self)

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(FreeFiles, "_ages", fail)
    free.give(spent)
    ended(free)
    assert lying(tmp_path) == []
    assert next(failing, None) is None


def test_what_someone_holds_is_not_removed_under_its_hands(free: FreeFiles, spent: Path, tmp_path: Path) -> None:
    free.give(spent)
    (path,) = lying(tmp_path)
    with path.open("rb") as taking:
        fcntl.flock(taking, fcntl.LOCK_EX)
        free.clear()
        assert lying(tmp_path) == [path]
    free.clear()
    assert lying(tmp_path) == []


def test_a_file_that_goes_while_it_is_taken_is_no_error(
    free: FreeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free.give(made(tmp_path / "one"))
    free.give(made(tmp_path / "other"))
    rename = Path.rename
    gone = iter([True])

    def vanish(self: Path, target: Path) -> Path:
        if next(gone, False):
            self.unlink()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", vanish)
    assert len(list(taken(free, SIZE, tmp_path / "next"))) == 1
    assert (tmp_path / "next").stat().st_size == SIZE
    assert open_files(tmp_path) == []
