import errno
import os
import random
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.server.disk.recycling import FreeFiles
from atoll.server.errors import StorageError
from atoll.server.stores import (
    BlobDamagedError,
    BlobMissingError,
    BlobStore,
    DirectoryBlobStore,
    StoreFullError,
    StoreUnavailableError,
)
from atoll.wire.digest import BlobManifest
from tests.properties import examples

CHUNK = 1024


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobStore:
    return DirectoryBlobStore(tmp_path / "blobs")


def _put(blobs: BlobStore, content: bytes, piece: int = 1000) -> BlobManifest:
    with blobs.create(chunk_bytes=CHUNK) as writer:
        for at in range(0, len(content), piece):
            writer.write(content[at : at + piece])
        return writer.commit()


def _get(blobs: BlobStore, name: str) -> bytes:
    with blobs.open(name) as blob:
        return bytes(blob.read(0, blob.manifest.size_bytes))


def _path(blobs: DirectoryBlobStore, name: str) -> Path:
    return blobs.root / name[:2] / name


def _content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60), deadline=None)
@given(size=st.integers(0, 5 * CHUNK), piece=st.integers(1, 3 * CHUNK), data=st.data())
def test_a_blob_reads_back_as_it_was_written(
    blobs: DirectoryBlobStore, size: int, piece: int, data: st.DataObject
) -> None:
    content = _content(size)
    manifest = _put(blobs, content, piece)
    assert manifest == BlobManifest.of_buffer(content, CHUNK)
    assert blobs.manifest(manifest.name) == manifest
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    with blobs.open(manifest.name) as blob:
        assert bytes(blob.read(start, stop)) == content[start:stop]
        chunks = [bytes(blob.chunk(index)) for index in range(manifest.chunk_count)]
    assert b"".join(chunks) == content


def test_arrays_are_written_as_they_lie(blobs: DirectoryBlobStore) -> None:
    weights = np.arange(1000, dtype="<f4").reshape(10, 100)
    with blobs.create() as writer:
        writer.write(weights.data)
        name = writer.commit().name
    with blobs.open(name) as blob:
        view = blob.read(0, 4000)
    np.testing.assert_array_equal(np.frombuffer(view, dtype="<f4").reshape(10, 100), weights)


def test_the_same_blob_again_is_no_error(blobs: DirectoryBlobStore) -> None:
    first = _put(blobs, b"same")
    assert _put(blobs, b"same") == first
    assert list(blobs.names()) == [first.name]


def test_a_damaged_blob_is_mended_by_putting_it_again(blobs: DirectoryBlobStore) -> None:
    name = _put(blobs, _content(5000)).name
    _path(blobs, name).write_bytes(b"rubbish")
    _put(blobs, _content(5000))
    assert _get(blobs, name) == _content(5000)


def test_names_exists_and_setting_aside(blobs: DirectoryBlobStore) -> None:
    names = {_put(blobs, _content(size)).name for size in range(20)}
    assert set(blobs.names()) == names
    gone = names.pop()
    assert blobs.exists(gone)
    blobs.set_aside(gone)
    blobs.set_aside(gone)
    assert not blobs.exists(gone)
    assert set(blobs.names()) == names
    assert blobs.sweep() == 1
    assert list((blobs.root / "incoming").iterdir()) == []


def test_nothing_is_set_aside_while_a_back_up_is_made(blobs: DirectoryBlobStore) -> None:
    name = _put(blobs, b"weights").name
    with blobs.kept():
        assert not blobs.set_aside(name)
        assert blobs.exists(name)
    assert blobs.set_aside(name)
    assert not blobs.exists(name)


def test_what_a_blob_takes(blobs: DirectoryBlobStore) -> None:
    name = _put(blobs, _content(5000)).name
    facts = blobs.facts(name)
    assert facts is not None
    assert facts.stored_bytes == _path(blobs, name).stat().st_size > 5000
    assert blobs.facts("0" * 64) is None


def test_views_outlive_deletion_and_closing(blobs: DirectoryBlobStore) -> None:
    name = _put(blobs, _content(3000)).name
    with blobs.open(name) as blob:
        pass
    blobs.set_aside(name)
    assert bytes(blob.read(0, 3000)) == _content(3000)


@pytest.mark.parametrize("name", ["0" * 64, "", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_a_blob_that_is_not_there(blobs: DirectoryBlobStore, name: str) -> None:
    with pytest.raises(BlobMissingError, match="there is no blob"), blobs.open(name):
        pass
    with pytest.raises(BlobMissingError):
        blobs.manifest(name)
    with pytest.raises(BlobMissingError):
        blobs.verify(name)


@pytest.mark.parametrize(("start", "stop"), [(-1, 0), (2, 1), (0, 3001), (3001, 3001)])
def test_ranges_outside_are_refused(blobs: DirectoryBlobStore, start: int, stop: int) -> None:
    with blobs.open(_put(blobs, _content(3000)).name) as blob:
        with pytest.raises(IndexError, match="3000"):
            blob.read(start, stop)
        with pytest.raises(IndexError):
            blob.chunk(3)
        with pytest.raises(IndexError):
            blob.chunk(-1)


@pytest.mark.parametrize("size", [0, 1, 2 * CHUNK, 5000])
def test_every_truncation_is_found(blobs: DirectoryBlobStore, size: int) -> None:
    name = _put(blobs, _content(size)).name
    path = _path(blobs, name)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(BlobDamagedError, match=str(path)), blobs.open(name):
            pass


def test_every_flipped_byte_is_found_and_none_comes_out(blobs: DirectoryBlobStore) -> None:
    content = _content(3000)
    name = _put(blobs, content).name
    path = _path(blobs, name)
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(BlobDamagedError, match=str(path)):
            blobs.verify(name)
        with pytest.raises(BlobDamagedError, match=str(path)):
            _get(blobs, name)


def test_damage_in_one_chunk_leaves_the_others_readable(blobs: DirectoryBlobStore) -> None:
    name = _put(blobs, _content(3000)).name
    path = _path(blobs, name)
    whole = bytearray(path.read_bytes())
    whole[CHUNK + 5] ^= 1
    path.write_bytes(whole)
    with blobs.open(name) as blob:
        assert bytes(blob.chunk(0)) == _content(3000)[:CHUNK]
        with pytest.raises(BlobDamagedError, match=f"bytes {CHUNK} to {2 * CHUNK - 1}") as found:
            blob.read(0, 3000)
        assert "backup" in found.value.detail.remedy


def test_a_file_under_another_name_is_found(blobs: DirectoryBlobStore) -> None:
    one, two = _put(blobs, b"one").name, _put(blobs, b"two").name
    _path(blobs, one).replace(_path(blobs, two))
    with pytest.raises(BlobDamagedError, match="does not match its name"):
        blobs.verify(two)


def test_what_is_not_committed_is_dropped(blobs: DirectoryBlobStore) -> None:
    with blobs.create() as writer:
        writer.write(b"half")
    assert list(blobs.names()) == []
    assert list((blobs.root / "incoming").iterdir()) == []


def test_sweep_leaves_living_writers_alone(blobs: DirectoryBlobStore) -> None:
    with blobs.create() as writer:
        writer.write(b"half")
        assert DirectoryBlobStore(blobs.root).sweep() == 0
        writer.write(b" and half")
        name = writer.commit().name
    assert _get(blobs, name) == b"half and half"


def test_sweep_removes_what_a_killed_process_left(blobs: DirectoryBlobStore) -> None:
    script = (
        "import os, pathlib, signal, sys\n"
        "from atoll.server.stores import DirectoryBlobStore\n"
        "DirectoryBlobStore(pathlib.Path(sys.argv[1])).create().write(b'half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(blobs.root)], check=False)
    assert len(list((blobs.root / "incoming").iterdir())) == 1
    assert blobs.sweep() == 1
    assert list((blobs.root / "incoming").iterdir()) == []


def test_models_are_readable_by_their_owner_only(blobs: DirectoryBlobStore) -> None:
    path = _path(blobs, _put(blobs, b"x").name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@contextmanager
def _full_disk(limit_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more_gives_a_clear_error_and_no_blob(blobs: DirectoryBlobStore) -> None:
    with _full_disk(10_000), blobs.create() as writer:
        writer.write(bytes(9_000))
        with pytest.raises(StoreUnavailableError, match=str(blobs.root)):
            writer.write(bytes(9_000))
    assert list(blobs.names()) == []
    assert list((blobs.root / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind", "message", "remedy"),
    [
        (errno.EIO, StoreUnavailableError, os.strerror(errno.EIO), "check the disk"),
        (errno.ENOSPC, StoreFullError, "disk is full", "free some space"),
    ],
)
def test_a_failing_fsync_is_no_commit(
    blobs: DirectoryBlobStore,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[StorageError],
    message: str,
    remedy: str,
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with blobs.create() as writer:
        writer.write(b"weights")
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(kind, match=message) as refused:
            writer.commit()
    assert str(blobs.root) not in str(refused.value.detail)
    assert remedy in refused.value.detail.remedy
    assert list(blobs.names()) == []
    assert list((blobs.root / "incoming").iterdir()) == []


def test_a_place_that_cannot_be_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError, match=str(tmp_path / "file")):
        DirectoryBlobStore(tmp_path / "file")


def test_the_directory_store_is_a_blob_store(blobs: DirectoryBlobStore) -> None:
    as_interface: BlobStore = blobs
    assert as_interface is blobs


LARGE = 1 << 20


def test_a_new_blob_is_written_over_a_deleted_one(blobs: DirectoryBlobStore) -> None:
    old = _put(blobs, _content(LARGE + 5))
    inode = _path(blobs, old.name).stat().st_ino
    blobs.set_aside(old.name)
    blobs.sweep()
    content = _content(LARGE)
    with blobs.create(chunk_bytes=CHUNK, expected_bytes=LARGE) as writer:
        writer.write(content)
        made = writer.commit()
    assert _path(blobs, made.name).stat().st_ino == inode
    assert _get(blobs, made.name) == content
    assert list(blobs.names()) == [made.name]
    blobs.verify(made.name)


def test_a_deleted_blob_that_is_read_stays_what_it_was(blobs: DirectoryBlobStore) -> None:
    content = _content(LARGE)
    old = _put(blobs, content)
    with blobs.open(old.name) as blob:
        view = blob.read(0, LARGE)
    blobs.set_aside(old.name)
    blobs.sweep()
    with blobs.create(expected_bytes=LARGE) as writer:
        writer.write(bytes(LARGE))
        writer.commit()
    assert bytes(view) == content


def test_a_blob_that_is_dropped_half_way_leaves_no_trace(blobs: DirectoryBlobStore) -> None:
    blobs.set_aside(_put(blobs, _content(LARGE)).name)
    blobs.sweep()
    with blobs.create(expected_bytes=LARGE) as writer:
        writer.write(b"begun")
    assert list(blobs.names()) == []
    assert list((blobs.root / "incoming").iterdir()) == []


def test_the_lock_of_back_ups_is_made_by_who_opens_the_store_first(blobs: DirectoryBlobStore) -> None:
    """Otherwise root would own it after a backup by root, and the server could no longer remove models."""
    assert stat.S_IMODE((blobs.root / "kept.lock").stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_back_up_by_root_leaves_the_lock_to_the_folders_owner(blobs: DirectoryBlobStore) -> None:
    (blobs.root / "kept.lock").unlink()
    os.chown(blobs.root, 12345, 12346)
    with blobs.kept():
        found = (blobs.root / "kept.lock").stat()
    assert (found.st_uid, found.st_gid) == (12345, 12346)


def test_a_blob_whose_file_was_taken_away_is_not_called_committed(blobs: DirectoryBlobStore) -> None:
    with blobs.create() as writer:
        writer.write(b"half")
        (left,) = (blobs.root / "incoming").iterdir()
        left.rename(blobs.root / "elsewhere")
        left.write_bytes(b"somebody else's")
        with pytest.raises(StoreUnavailableError, match="removed while"):
            writer.commit()
    assert list(blobs.names()) == []


class TestDiskFailsOnTheWayOut:
    """A caller that waits for the disk must learn that the disk is the cause."""

    def test_a_sweep_that_is_refused_is_an_error_of_the_store(
        self, blobs: DirectoryBlobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blobs.set_aside(_put(blobs, b"spare").name)
        monkeypatch.setattr(FreeFiles, "give", _refuse)
        with pytest.raises(StoreUnavailableError, match="Read-only") as raised:
            blobs.sweep()
        assert str(blobs.root) not in str(raised.value.detail)

    def test_a_writer_that_cannot_remove_its_file_is_an_error_of_the_store(
        self, blobs: DirectoryBlobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = blobs.create()
        monkeypatch.setattr(Path, "unlink", _refuse)
        with pytest.raises(StoreUnavailableError, match="Read-only"), writer:
            raise ValueError("given up")
        monkeypatch.undo()
        assert blobs.sweep() == 1  # its lock is gone


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system", "/srv/atoll/blobs")
