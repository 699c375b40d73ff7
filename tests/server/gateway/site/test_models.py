"""A gateway fetches each model once from a real server, even over a breaking line, and evicts the oldest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
import numpy as np
import pytest

from atoll.server.errors import CorruptDataError, NotFoundError, UnavailableError
from atoll.server.gateway.site import models as module
from atoll.server.gateway.site.link import Line
from atoll.server.gateway.site.models import Models
from atoll.server.stores import DirectoryBlobStore
from atoll.server.stores.directory_blobs import DirectoryBlobWriter
from atoll.wire.v1 import transfer_pb2
from tests.patience import WAIT_S
from tests.server.gateway.host.gateways import Aggregator
from tests.server.rpc.world import World

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHUNK_BYTES, CHUNKS = 1024, 8
BROKEN = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "the line broke")


class Cut:
    """A channel to the server that interrupts downloads after some chunks, and records where each one begins."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.after: list[int] = []
        self.asked: list[int] = []
        self.swapped = ""

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.unary_unary(*args, **kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.stream_unary(*args, **kwargs)

    def unary_stream(self, method: str, request_serializer: Any = None, **kwargs: Any) -> Any:
        begin = self._channel.unary_stream(method, request_serializer=request_serializer, **kwargs)

        def download(request: transfer_pb2.DownloadRequest) -> Any:
            self.asked.append(request.first_chunk)
            if self.swapped:
                request.blob = self.swapped
            return Breaking(begin(request), self.after.pop(0) if self.after else CHUNKS)

        return download


class Breaking:
    """An interrupted download."""

    def __init__(self, call: Any, after: int) -> None:
        self._call = call
        self._left = after
        self.cancel = call.cancel

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for message in self._call:
            if not self._left:
                raise BROKEN
            self._left -= 1
            yield message


class Site:
    """A cache at an aggregator of a real server."""

    def __init__(self, world: World, aggregator: Aggregator, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.world = world
        self.line = Cut(aggregator.channel)
        self.folder = folder / "models"
        self.blobs = DirectoryBlobStore(self.folder)
        self.fetched: list[int] = []
        line = Line(cast("grpc.aio.Channel", self.line), cast("Any", None), None)
        self.models = Models(self.blobs, lambda: line, executor, 2, self.fetched.append)

    async def model(self, seed: int) -> str:
        """Store a model on the server."""
        values = np.random.default_rng(seed).normal(size=CHUNKS * CHUNK_BYTES // 4).astype(np.float32)
        return await self.world.upload_model(values, CHUNK_BYTES)

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if path.is_file()}

    def size(self, name: str) -> int:
        with self.blobs.open(name) as blob:
            return len(blob.read(0, blob.manifest.size_bytes))


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
async def site(tmp_path: Path, executor: ThreadPoolExecutor) -> AsyncIterator[Site]:
    async with World(tmp_path / "data", share_models=True) as world:
        made = Site(world, await Aggregator.of(world), tmp_path, executor)
        await made.models.start()
        yield made
        await made.models.close()


async def test_concurrent_requests_share_a_download(site: Site) -> None:
    name = await site.model(1)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(site.models.ensure(name) for _ in range(3)))
    await site.models.ensure(name)
    assert (site.line.asked, site.fetched) == ([0], [CHUNKS * CHUNK_BYTES])
    assert site.size(name) == CHUNKS * CHUNK_BYTES


async def test_a_download_that_breaks_off_resumes(site: Site) -> None:
    name = await site.model(1)
    site.line.after = [3, 0, 4]
    for _ in range(3):
        with pytest.raises(UnavailableError, match="the line broke"):
            await site.models.ensure(name)
        assert not site.blobs.exists(name)
    await site.models.ensure(name)
    assert site.line.asked == [0, 3, 3, 7]
    assert site.size(name) == CHUNKS * CHUNK_BYTES


async def test_the_first_chunks_of_few_models_are_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BEGUN", 1)
    names = [await site.model(seed) for seed in (1, 2)]
    site.line.after = [3, 3]
    for name in names:
        with pytest.raises(UnavailableError):
            await site.models.ensure(name)
    for name in names:
        await site.models.ensure(name)
    assert site.line.asked == [0, 0, 0, 3]


async def test_what_is_not_the_model_is_refused_and_removed(site: Site) -> None:
    name, other = await site.model(1), await site.model(2)
    site.line.swapped = other
    with pytest.raises(CorruptDataError, match="for model"):
        await site.models.ensure(name)
    site.line.swapped = ""
    await site.models.ensure(name)
    assert sorted(site.blobs.names()) == [name]


async def test_a_model_that_the_server_no_longer_has_is_not_tried_forever(site: Site) -> None:
    with pytest.raises(NotFoundError):
        await site.models.ensure("00" * 32)


async def test_the_least_recently_used_model_is_removed_also_after_a_restart(
    site: Site, executor: ThreadPoolExecutor
) -> None:
    first, second, third = [await site.model(seed) for seed in (1, 2, 3)]
    for name in (first, second, first, third):
        await site.models.ensure(name)
    assert sorted(site.blobs.names()) == sorted([first, third])
    again = Models(site.blobs, site.models._line, executor, 1, site.fetched.append)
    await again.start()
    assert len(list(site.blobs.names())) == 1


async def test_closing_leaves_nothing_half_written(site: Site) -> None:
    name, before = await site.model(1), site.files()
    site.line.after = [3]
    with pytest.raises(UnavailableError):
        await site.models.ensure(name)
    assert site.files() > before
    await site.models.close()
    assert site.files() == before


async def test_closing_waits_for_a_chunk_that_is_being_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file must not be closed while a thread writes to it."""
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(writer: DirectoryBlobWriter, piece: Buffer) -> None:
        began.set()
        assert go.wait(WAIT_S)
        write(writer, piece)
        ended.set()

    name, before = await site.model(1), site.files()
    write = DirectoryBlobWriter.write
    monkeypatch.setattr(DirectoryBlobWriter, "write", slow)
    fetching = asyncio.create_task(site.models.ensure(name))
    assert await asyncio.to_thread(began.wait, WAIT_S)
    closing = asyncio.create_task(site.models.close())
    done, _ = await asyncio.wait({closing}, timeout=0.05)
    assert not done
    go.set()
    await asyncio.wait_for(closing, WAIT_S)
    assert ended.is_set()
    await asyncio.wait({fetching}, timeout=WAIT_S)
    assert fetching.cancelled()
    assert site.files() == before
