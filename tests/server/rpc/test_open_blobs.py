import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.server.rpc.open_blobs import KEPT_FRAMES, OpenBlobs
from atoll.server.stores import BlobMissingError, DirectoryBlobStore
from atoll.wire.chunks import frame_download


@pytest.fixture
def store(tmp_path: Path) -> DirectoryBlobStore:
    return DirectoryBlobStore(tmp_path / "blobs")


@pytest.fixture
def shared(store: DirectoryBlobStore) -> Iterator[OpenBlobs]:
    with ThreadPoolExecutor(2) as executor:
        yield OpenBlobs(store, executor)


def blob_of(store: DirectoryBlobStore, content: bytes) -> str:
    with store.create() as writer:
        writer.write(content)
        return writer.commit().name


async def test_readers_at_the_same_time_share_a_blob(store: DirectoryBlobStore, shared: OpenBlobs) -> None:
    name = blob_of(store, b"model")
    async with shared.open(name) as one, shared.open(name) as other:
        assert one is other
        assert one.frame(0) == frame_download(0, b"model")
    async with shared.open(name) as later:
        assert later is not one
    assert shared._entries == {}


async def test_readers_that_come_together_open_it_once(store: DirectoryBlobStore, shared: OpenBlobs) -> None:
    name = blob_of(store, b"model")

    async def read() -> int:
        async with shared.open(name) as blob:
            await asyncio.sleep(0)
            return id(blob)

    assert len(set(await asyncio.gather(*(read() for _ in range(8))))) == 1


async def test_a_chunk_is_serialised_once_for_those_side_by_side(store: DirectoryBlobStore, shared: OpenBlobs) -> None:
    with store.create(chunk_bytes=1024) as writer:
        writer.write(bytes(1024 * (KEPT_FRAMES + 2)))
        name = writer.commit().name
    async with shared.open(name) as one, shared.open(name) as other:
        frames = [one.frame(index) for index in range(KEPT_FRAMES + 2)]
        assert other.frame(KEPT_FRAMES + 1) is frames[-1]
        assert other.frame(0) == frames[0]
        assert other.frame(0) is not frames[0], "only the last few are kept"


async def test_the_last_reader_keeps_it_open(store: DirectoryBlobStore, shared: OpenBlobs) -> None:
    name = blob_of(store, b"model")
    async with shared.open(name):
        async with shared.open(name) as blob:
            pass
        store.set_aside(name)
        store.sweep()
        assert blob.frame(0) == frame_download(0, b"model")


async def test_a_blob_that_is_missing_is_not_remembered(store: DirectoryBlobStore, shared: OpenBlobs) -> None:
    with pytest.raises(BlobMissingError):
        async with shared.open("0" * 64):
            pass
    assert shared._entries == {}
    name = blob_of(store, b"model")
    async with shared.open(name):
        pass
