"""The models of rounds at a gateway: each comes from the server once, and is served on from the disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

from atoll.server.errors import CorruptDataError
from atoll.server.gateway.site.link import SERVER, Line
from atoll.server.rpc.internal_calls import as_server_errors
from atoll.server.stores import BlobStore
from atoll.server.stores.blobs import BlobWriter
from atoll.wire.chunks import parse_download
from atoll.wire.v1 import transfer_pb2
from atoll.wire.v1.transfer_pb2_grpc import TransferServiceStub

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)

CALL_S = 30.0


class Models:
    """The cache. For the event loop alone.

    Args:
        blobs: where they are kept.
        line: the connection to the server.
        executor: threads for the disk.
        most: number of models that are kept, the newest ones.
        fetched: called with the bytes of each model that came.
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
        self._kept: OrderedDict[str, None] = OrderedDict()

    async def start(self) -> None:
        """Take over what an earlier process left."""
        for name in await self._call(lambda: sorted(self._blobs.names())):
            self._kept[name] = None
        await self._evict()

    async def ensure(self, name: str) -> None:
        """Have a model here; callers that wait for the same one share its download.

        Raises:
            ServerError: if it cannot be fetched, or is not what its name says.
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
        stub = TransferServiceStub(self._line().channel)
        async with as_server_errors(SERVER):
            answer = await stub.GetManifest(transfer_pb2.GetManifestRequest(blob=name), timeout=CALL_S)
            size, chunk_bytes = answer.manifest.size_bytes, answer.manifest.chunk_bytes
            with self._blobs.create(chunk_bytes=chunk_bytes, expected_bytes=size) as writer:
                await self._receive(name, writer)
                made = await self._call(writer.commit)
        if made.name != name:
            await self._call(self._blobs.set_aside, made.name)
            raise CorruptDataError("gateway.model", f"the server sent {made.name[:16]} for model {name[:16]}")
        log.info("model %s came from the server: %d bytes", name[:16], size)
        self._fetched(size)
        self._kept[name] = None
        await self._evict()

    async def _receive(self, name: str, writer: BlobWriter) -> None:
        # Chunks come as raw bytes: protobuf would copy them once more.
        download: Any = self._line().channel.unary_stream(
            "/atoll.wire.v1.TransferService/Download",
            request_serializer=transfer_pb2.DownloadRequest.SerializeToString,
        )
        async with contextlib.AsyncExitStack() as stack:
            call = download(transfer_pb2.DownloadRequest(blob=name))
            stack.callback(call.cancel)
            async for message in call:
                _, payload = parse_download(message)
                await self._call(writer.write, payload)

    async def _evict(self) -> None:
        """Remove the oldest models beyond the most; downloads of them that are open go on."""
        while len(self._kept) > self._most:
            name, _ = self._kept.popitem(last=False)
            await self._call(self._blobs.set_aside, name)
        await self._call(self._blobs.sweep)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))
