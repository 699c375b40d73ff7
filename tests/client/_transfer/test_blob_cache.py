from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from atoll.client import DiskReserveError
from atoll.client._transfer.blob_cache import BlobCache
from atoll.wire.digest import BlobManifest
from atoll.wire.errors import DigestError

CUT = 1024


def blob(seed: int, size: int = 10 * CUT + 3) -> tuple[bytes, BlobManifest]:
    data = random.Random(seed).randbytes(size)
    return data, BlobManifest.of_buffer(data, CUT)


def receive(cache: BlobCache, data: bytes, manifest: BlobManifest, chunks: int | None = None) -> Path | None:
    """Write the missing chunks, or only this many; return the finished path if whole."""
    partial = cache.open(manifest)
    until = manifest.chunk_count if chunks is None else partial.next_chunk + chunks
    for index in range(partial.next_chunk, until):
        start, stop = manifest.chunk_range(index)
        partial.write(index, memoryview(data)[start:stop])
    whole = partial.whole
    partial.close()
    return cache.finish(partial) if whole else None


def test_a_whole_blob_maps_to_its_bytes(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 2)
    data, manifest = blob(1)
    path = receive(cache, data, manifest)
    assert path == cache.find(manifest.name)
    assert path is not None
    view = cache.map(path)
    assert view.readonly
    assert view == data


def test_an_empty_blob(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 1)
    path = receive(cache, *blob(1, size=0))
    assert path is not None
    assert cache.map(path).nbytes == 0


def test_what_has_arrived_is_kept_for_the_next_process(tmp_path: Path) -> None:
    data, manifest = blob(1)
    receive(BlobCache(tmp_path, 2), data, manifest, chunks=4)
    partial = BlobCache(tmp_path, 2).open(manifest)
    assert partial.next_chunk == 4
    assert partial.received_bytes == 4 * CUT


def test_a_damaged_chunk_on_disk_is_fetched_again(tmp_path: Path) -> None:
    data, manifest = blob(1)
    receive(BlobCache(tmp_path, 2), data, manifest, chunks=6)
    (file,) = tmp_path.iterdir()
    with file.open("r+b") as handle:
        handle.seek(2 * CUT + 5)
        handle.write(b"\xff\x00\xff")
    cache = BlobCache(tmp_path, 2)
    assert cache.open(manifest).next_chunk == 2
    path = receive(cache, data, manifest)
    assert path is not None
    assert path.read_bytes() == data


def test_a_whole_file_of_an_earlier_process_is_trusted_only_after_verification(tmp_path: Path) -> None:
    data, manifest = blob(1)
    path = receive(BlobCache(tmp_path, 2), data, manifest)
    assert path is not None
    again = BlobCache(tmp_path, 2)
    assert again.find(manifest.name) is None
    assert again.open(manifest).whole
    path = receive(again, data, manifest)
    assert path == again.find(manifest.name)


def test_wrong_and_unexpected_chunks_are_refused(tmp_path: Path) -> None:
    data, manifest = blob(1)
    partial = BlobCache(tmp_path, 2).open(manifest)
    with pytest.raises(DigestError, match="does not match"):
        partial.write(0, memoryview(bytes(CUT)))
    with pytest.raises(DigestError, match="the blob has no chunk"):
        partial.write(1, memoryview(data)[CUT : 2 * CUT])
    assert partial.next_chunk == 0


def test_only_the_last_few_are_kept(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 2)
    names = []
    for seed in range(5):
        data, manifest = blob(seed)
        receive(cache, data, manifest)
        names.append(manifest.name)
        os.utime(tmp_path / manifest.name, ns=(seed, seed))
    assert {path.name for path in tmp_path.iterdir()} == set(names[-2:])
    assert cache.find(names[0]) is None


def test_the_file_of_the_oldest_is_written_over(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 2)
    inodes = []
    for seed, size in enumerate([5 * CUT, 7 * CUT, 6 * CUT, 8 * CUT]):
        data, manifest = blob(seed, size)
        path = receive(cache, data, manifest)
        assert path is not None
        os.utime(path, ns=(seed, seed))
        assert path.read_bytes() == data
        inodes.append(path.stat().st_ino)
    assert inodes[2:] == inodes[:2]


def test_a_blob_that_is_looked_at_is_never_written_over(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 2)
    first, manifest = blob(0)
    path = receive(cache, first, manifest)
    assert path is not None
    view = cache.map(path)
    for seed in range(1, 6):
        receive(cache, *blob(seed))
    assert view == first


@pytest.mark.parametrize("name", ["", "../escape", "A" * 64, "0" * 63, "0" * 65])
def test_names_that_are_no_digests_touch_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        BlobCache(tmp_path, 1).find(name)


class Disk:
    """A disk of this many bytes, used only by the files of a folder."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def free(self, folder: Path) -> int:
        return self.size_bytes - sum(path.stat().st_size for path in folder.iterdir())


LARGE = 1 << 20


def large(seed: int) -> tuple[bytes, BlobManifest]:
    data = random.Random(seed).randbytes(LARGE)
    return data, BlobManifest.of_buffer(data, LARGE // 8)


def test_a_blob_that_would_take_the_disks_reserve_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    disk = Disk(3 * LARGE)
    cache = BlobCache(tmp_path, 2, reserve_bytes=2 * LARGE + 1, free=disk.free)
    with pytest.raises(DiskReserveError, match=r"less than 2097153 bytes of the disk free \(min_free_disk_bytes\)"):
        cache.open(large(0)[1])
    assert not list(tmp_path.iterdir())
    disk.size_bytes += 1
    assert receive(cache, *large(0)) is not None


def test_a_disk_that_fills_up_meanwhile_ends_the_download(tmp_path: Path) -> None:
    disk = Disk(3 * LARGE)
    cache = BlobCache(tmp_path, 2, reserve_bytes=LARGE, free=disk.free)
    data, manifest = large(0)
    partial = cache.open(manifest)
    partial.write(0, memoryview(data)[: LARGE // 8])
    disk.size_bytes = LARGE + LARGE // 8
    with pytest.raises(DiskReserveError):
        partial.write(1, memoryview(data)[LARGE // 8 : LARGE // 4])
    partial.close()
    assert disk.free(tmp_path) >= LARGE


def test_older_models_make_room_for_the_next_one(tmp_path: Path) -> None:
    disk = Disk(3 * LARGE)
    cache = BlobCache(tmp_path, 3, reserve_bytes=LARGE, free=disk.free)
    for seed in range(5):
        path = receive(cache, *large(seed))
        assert path is not None
        os.utime(path, ns=(seed, seed))
        assert disk.free(tmp_path) >= LARGE
    assert len(list(tmp_path.iterdir())) == 2


def test_models_that_are_never_finished_do_not_pile_up(tmp_path: Path) -> None:
    """A server that begins another model in each round and never sends its end."""
    cache = BlobCache(tmp_path, 2)
    for seed in range(5):
        receive(cache, *large(seed), chunks=3)
        assert len(list(tmp_path.iterdir())) == 1
