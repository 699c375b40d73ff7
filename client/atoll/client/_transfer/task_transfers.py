"""The participant's side of TransferService for one task: fetch blobs, send shards, report.

All methods block and are for worker threads. The ranks of a silo use them too: each uploads its own ranges, and
one rank calls ``report`` with the headers of all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import grpc

from atoll.client._clock import now_s
from atoll.client._transfer.retrier import Retrier, TransferBroken
from atoll.client._transfer.stall import guarded
from atoll.client._transfer.upload import Upload
from atoll.client.errors import DiskReserveError, RefusedError
from atoll.wire.chunks import Held, key_to_proto, parse_download, range_from_proto
from atoll.wire.digest import DEFAULT_CHUNK_BYTES
from atoll.wire.errors import WireError
from atoll.wire.messages import manifest_from_proto

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client._transfer.blob_cache import BlobCache, PartialBlob
    from atoll.client._transfer.calls import TransferCalls
    from atoll.client._transfer.elements import Shard
    from atoll.client.control import TaskControl
    from atoll.client.limits import Limits
    from atoll.wire.chunks import ChunkHeader, UploadKey
    from atoll.wire.digest import BlobManifest
    from atoll.wire.encoding import Encoding
    from atoll.wire.v1 import transfer_pb2

log = logging.getLogger("atoll.client")

_SLOWEST_COMMIT = 20e6
"""Bytes per second at which a server verifies and fsyncs an upload, for the time-out of a report."""


class ChunkTarget(Protocol):
    """Receives the chunks of a blob that it lacks."""

    def lacks(self, manifest: BlobManifest) -> list[int]:
        """Indices of the chunks that it lacks, in order."""
        ...

    def take(self, manifest: BlobManifest, number: int, payload: memoryview) -> None:
        """Verify and keep a chunk. Raises ``DigestError`` if it is not that chunk."""
        ...


_NAMED_CHUNKS = 1 << 14
"""Maximum number of chunk indices in one download request: 32 GiB."""
Progress = Callable[[int, int], None]
"""Called with the transferred and the total bytes."""


def _size_of(manifest: BlobManifest, chunks: Iterable[int]) -> int:
    return sum(stop - first for first, stop in map(manifest.chunk_range, chunks))


def _further(progress: Progress, done: int, total: int, received: int) -> None:
    progress(done + received, total)


def quiet(done_bytes: int, total_bytes: int) -> None:
    """Ignores the progress."""


@dataclass(frozen=True)
class TaskTransfers:
    """Transfers of one task; ``traceparent`` (W3C) travels with each call if it is not empty.

    Every method raises ``Abandoned`` if the task was, ``NotPermittedError``, ``RoundGoneError`` or ``RefusedError`` if
    the server refused permanently, and ``UnreachableError`` once its time is over: a download's at the task's deadline,
    an upload's and a report's ``late_grace_s`` after it.
    """

    calls: TransferCalls
    limits: Limits
    control: TaskControl
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    traceparent: str = ""

    def fetch(self, blob: str, size_bytes: int, cache: BlobCache, progress: Progress = quiet) -> Path:
        """Download a blob of ``size_bytes`` into the cache, resuming an earlier try.

        Every chunk is verified; a blob of another size is refused before any of it is fetched.

        Raises:
            DiskReserveError: if the disk has no room for it, before or while it is fetched.
        """
        known = cache.find(blob)
        if known is not None:
            return known
        retrier = self._retrier("download", grace_s=0.0)
        manifest = retrier.call(lambda: self._manifest(blob, size_bytes))
        partial = cache.open(manifest)
        try:
            if partial.received_bytes:
                log.info("download resumes: %d of %d bytes present", partial.received_bytes, manifest.size_bytes)
            while not partial.whole:
                retrier.call(lambda: self._receive(partial, retrier, progress))
        finally:
            partial.close()
        return cache.finish(partial)

    def fetch_into(self, blob: str, size_bytes: int, target: ChunkTarget, progress: Progress = quiet) -> int:
        """Download the chunks of a blob of ``size_bytes`` that a target lacks, for a rank of a silo.

        Returns:
            Bytes that were downloaded.
        """
        retrier = self._retrier("download", grace_s=0.0)
        manifest = retrier.call(lambda: self._manifest(blob, size_bytes))
        total = _size_of(manifest, target.lacks(manifest))

        def attempt() -> None:
            while lacking := target.lacks(manifest):
                done = total - _size_of(manifest, lacking)
                self._receive_named(
                    manifest, lacking[:_NAMED_CHUNKS], target, retrier, partial(_further, progress, done, total)
                )

        retrier.call(attempt)
        progress(total, total)
        return total

    def upload(
        self, key: UploadKey, shard: Shard, encoding: Encoding, progress: Progress = quiet
    ) -> tuple[ChunkHeader, ...]:
        """Send the shard's elements; returns the headers of its chunks, for the report's digest.

        A broken stream is resumed: the server lists what it holds, and the rest is sent. Chunks are read from the
        shard's source one by one, and again after a break, so the arrays behind it must not change meanwhile.

        Raises:
            UpdateError: from the source, for values that the server would reject.
        """
        upload = Upload(key, shard, encoding, self.chunk_bytes)
        self.resume(upload, progress, ask=False)
        return upload.headers

    def resume(self, upload: Upload, progress: Progress = quiet, *, ask: bool = True) -> None:
        """Send the missing chunks of an upload; with ``ask`` the server is first asked which chunks it holds."""
        retrier = self._retrier("upload", self.limits.late_grace_s)
        asking = [ask]

        def attempt() -> None:
            if asking[0]:
                upload.keep(self.held(upload.key))
                log.info("upload resumes: %d of %d chunks to send", len(upload.missing), len(upload.chunks))
            asking[0] = True
            if upload.missing:
                self._send(upload, retrier, progress)

        retrier.call(attempt)

    def report(self, request: transfer_pb2.ReportRequest, upload_bytes: int = 0) -> transfer_pb2.ReportResponse:
        """Report the round's result, which is durable once the server answers. Repeating it gives the same answer."""
        retrier = self._retrier("report", self.limits.late_grace_s)
        timeout_s = self.limits.call_s + upload_bytes / _SLOWEST_COMMIT
        return retrier.call(lambda: self.calls.report(request, timeout_s, self.traceparent))

    def held(self, key: UploadKey) -> Held:
        """The elements of an upload that the server holds (one call, not retried)."""
        answer = self.calls.upload_status(key_to_proto(key), self.limits.call_s, self.traceparent)
        return Held(map(range_from_proto, answer.held))

    def _manifest(self, blob: str, size_bytes: int) -> BlobManifest:
        answer = self.calls.manifest(blob, self.limits.call_s, self.traceparent)
        manifest = manifest_from_proto(answer.manifest)
        if manifest.name != blob:
            raise RefusedError(f"asked for blob {blob[:16]}, the server sent the manifest of {manifest.name[:16]}")
        if manifest.size_bytes != size_bytes:
            raise RefusedError(f"blob {blob[:16]} has {manifest.size_bytes} bytes, its layout has {size_bytes}")
        return manifest

    def _receive(self, partial: PartialBlob, retrier: Retrier, progress: Progress) -> None:
        timeout_s = max(1.0, self.control.remaining_s)
        call = self.calls.download(partial.manifest.name, partial.next_chunk, timeout_s, self.traceparent)
        with guarded(call.cancel, self.control, self.limits.stall_s, "download") as tick:
            for message in call:
                try:
                    partial.write(*parse_download(message))
                except WireError as error:
                    call.cancel()
                    raise TransferBroken(str(error)) from None
                except DiskReserveError:
                    call.cancel()
                    raise
                tick()
                retrier.progress()
                progress(partial.received_bytes, partial.manifest.size_bytes)
        if not partial.whole:
            raise TransferBroken(f"the stream ended at byte {partial.received_bytes} of {partial.manifest.size_bytes}")

    def _receive_named(
        self,
        manifest: BlobManifest,
        chunks: list[int],
        target: ChunkTarget,
        retrier: Retrier,
        progress: Callable[[int], None],
    ) -> None:
        """Download these chunks in one call."""
        timeout_s, received = max(1.0, self.control.remaining_s), 0
        call = self.calls.download(manifest.name, 0, timeout_s, self.traceparent, chunks)
        with guarded(call.cancel, self.control, self.limits.stall_s, "download") as tick:
            for message in call:
                number, payload = parse_download(message)
                try:
                    target.take(manifest, number, payload)
                except WireError as error:
                    call.cancel()
                    raise TransferBroken(str(error)) from None
                received += payload.nbytes
                tick()
                retrier.progress()
                progress(received)
        if received < _size_of(manifest, chunks):
            raise TransferBroken(f"the stream ended after {received} bytes of {len(chunks)} chunks")

    def _send(self, upload: Upload, retrier: Retrier, progress: Progress) -> None:
        cancels: list[grpc.Future[transfer_pb2.UploadResponse]] = []

        def cancel() -> None:
            for call in cancels:
                call.cancel()

        with guarded(cancel, self.control, self.limits.stall_s, "upload") as tick:

            def moved() -> None:
                tick()
                retrier.progress()
                progress(upload.sent_bytes, upload.total_bytes)

            timeout_s = max(1.0, self.control.remaining_s + self.limits.late_grace_s)
            call = self.calls.upload(upload.frames(moved, cancel), timeout_s, self.traceparent)
            cancels.append(call)
            if upload.error is not None or self.control.abandoned.is_set():
                call.cancel()  # the reason to cancel came before the call
            self._finish(call, upload)
        upload.all_sent()

    def _finish(self, call: grpc.Future[transfer_pb2.UploadResponse], upload: Upload) -> None:
        try:
            call.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            if upload.error is not None:
                raise upload.error from None
            if isinstance(error, grpc.FutureCancelledError):
                raise TransferBroken("the stream was broken off") from None
            raise
        if upload.error is not None:
            raise upload.error

    def _retrier(self, what: str, grace_s: float) -> Retrier:
        return Retrier(self.limits, self.control, what, lambda: now_s() + self.control.remaining_s + grace_s)
