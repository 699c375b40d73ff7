"""A gateway's cache of rounds' models: each is fetched from the server once, and then served from disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from atoll.server.errors import CorruptDataError, UnavailableError
from atoll.server.gateway.site.link import SERVER, Line
from atoll.server.rpc.internal_calls import as_server_errors
from atoll.server.stores import BlobStore
from atoll.server.stores.blobs import BlobWriter
from atoll.server.threads import in_thread, to_end
from atoll.wire.chunks import parse_download
from atoll.wire.v1 import transfer_pb2
from atoll.wire.v1.transfer_pb2_grpc import TransferServiceStub

log = logging.getLogger(__name__)

CALL_S = 30.0
MAX_BEGUN = 4
"""Maximum number of models whose interrupted download is kept for the next attempt."""


@dataclass(eq=False)
class _Begun:
    """A model being downloaded.

    Attributes:
        chunks: its number of chunks.
        received: number of chunks written so far.
    """

    writer: BlobWriter
    discarding: contextlib.ExitStack
    size_bytes: int
    chunks: int
    received: int = 0


class Models:
    """The cache. Only the event loop uses it. An interrupted download is resumed by the next one of the same model.

    Args:
        blobs: store of the cached models.
        line: the connection to the server.
        executor: threads for disk access.
        most: maximum number of cached models; the newest are kept.
        fetched: called with the size in bytes of each downloaded model.
    """

    def __init__(
        self,
        blobs: BlobStore,
        line: Callable[[], Line],
        executor: Executor,
        most: int,
        fetched: Callable[[int], None],
    ) -> None:
        self._blobs = blobs
        self._line = line
        self._executor = executor
        self._most = most
        self._fetched = fetched
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._begun: OrderedDict[str, _Begun] = OrderedDict()
        self._kept: OrderedDict[str, None] = OrderedDict()

    async def start(self) -> None:
        """Take over the models that an earlier process left."""
        for name in await in_thread(self._executor, lambda: sorted(self._blobs.names())):
            self._kept[name] = None
        await self._evict()

    async def close(self) -> None:
        """Give up unfinished downloads."""
        coming = list(self._coming.values())
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        await self._discard_begun(0)

    async def ensure(self, name: str) -> None:
        """Make a model available here; concurrent callers for the same model share its download.

        Raises:
            ServerError: if it cannot be fetched, or does not match its name.
        """
        if name in self._kept:
            self._kept.move_to_end(name)
            return
        coming = self._coming.get(name)
        if coming is None:
            coming = self._coming[name] = asyncio.create_task(self._fetch(name))
            coming.add_done_callback(lambda _: self._coming.pop(name, None))
        await asyncio.shield(coming)

    async def _fetch(self, name: str) -> None:
        begun = self._begun.pop(name, None) or await self._begin(name)
        try:
            async with as_server_errors(SERVER):
                await self._receive(name, begun)
            made = await to_end(in_thread(self._executor, begun.writer.commit))
        except UnavailableError:
            self._begun[name] = begun
            await self._discard_begun(MAX_BEGUN)
            raise
        except BaseException:
            begun.discarding.close()
            raise
        begun.discarding.close()
        if made.name != name:
            await in_thread(self._executor, self._blobs.set_aside, made.name)
            raise CorruptDataError("gateway.model", f"the server sent {made.name[:16]} for model {name[:16]}")
        log.info("model %s came from the server: %d bytes", name[:16], begun.size_bytes)
        self._fetched(begun.size_bytes)
        self._kept[name] = None
        await self._evict()

    async def _begin(self, name: str) -> _Begun:
        stub = TransferServiceStub(self._line().channel)
        async with as_server_errors(SERVER):
            answer = await stub.GetManifest(transfer_pb2.GetManifestRequest(blob=name), timeout=CALL_S)
        size, chunk_bytes = answer.manifest.size_bytes, answer.manifest.chunk_bytes
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(self._blobs.create(chunk_bytes=chunk_bytes, expected_bytes=size))
            return _Begun(writer, stack.pop_all(), size, -(-size // chunk_bytes))

    async def _receive(self, name: str, begun: _Begun) -> None:
        """Receive the missing chunks."""
        if begun.received == begun.chunks:
            return
        # Chunks are raw bytes, since protobuf would copy them once more.
        download: Any = self._line().channel.unary_stream(
            "/atoll.wire.v1.TransferService/Download",
            request_serializer=transfer_pb2.DownloadRequest.SerializeToString,
        )
        async with contextlib.AsyncExitStack() as stack:
            call = download(transfer_pb2.DownloadRequest(blob=name, first_chunk=begun.received))
            stack.callback(call.cancel)
            async for message in call:
                _, payload = parse_download(message)
                await to_end(in_thread(self._executor, begun.writer.write, payload))
                begun.received += 1

    async def _discard_begun(self, most: int) -> None:
        while len(self._begun) > most:
            _, oldest = self._begun.popitem(last=False)
            await in_thread(self._executor, oldest.discarding.close)

    async def _evict(self) -> None:
        """Remove the oldest models beyond the maximum; open downloads of them continue."""
        while len(self._kept) > self._most:
            name, _ = self._kept.popitem(last=False)
            await in_thread(self._executor, self._blobs.set_aside, name)
        await in_thread(self._executor, self._blobs.sweep)
