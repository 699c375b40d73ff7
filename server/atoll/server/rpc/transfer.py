"""TransferService: downloads models and takes uploads; ``atoll.wire.chunks`` frames payloads, not protobuf."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from itertools import pairwise, zip_longest
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from atoll.server.errors import InvalidRequestError, ServerError, TooLateError
from atoll.server.ingest.arrivals import Arrivals
from atoll.server.ingest.commit import DurableUpload, commit_small_update, commit_upload
from atoll.server.ingest.coordinator_api import Commit, CoordinatorApi, ReportReceipt, UploadGrant
from atoll.server.ingest.receiver import Receiver, RejectedUpdateError
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.transfer_meter import TransferMeter
from atoll.server.ingest.upload_ref import UploadRef
from atoll.server.rpc.admission import Allowance
from atoll.server.rpc.authentication import Authenticator, Context, Watch
from atoll.server.rpc.download_room import DownloadRoom
from atoll.server.rpc.ingest_messages import receipt_to_proto
from atoll.server.rpc.open_blobs import OpenBlobs
from atoll.server.rpc.upload_locks import UploadLocks
from atoll.server.runs.reporting import ReportRefusedError
from atoll.server.stores import BlobStore
from atoll.server.telemetry.context import remember
from atoll.server.threads import in_thread, to_end
from atoll.wire.chunks import Chunk, UploadKey, key_from_proto, merged, parse_upload, range_to_proto
from atoll.wire.errors import WireError
from atoll.wire.messages import manifest_to_proto
from atoll.wire.v1 import participation_pb2, transfer_pb2

log = logging.getLogger(__name__)

SERVICE = "atoll.wire.v1.TransferService"
MAX_NAMED_CHUNKS = 1 << 16
"""Maximum number of chunk indices in one download request."""
AHEAD = 4
"""With at most this many streams, each prefetches its next chunk while one is written or sent. More streams keep disk
and processors busy without prefetching, and a second chunk of each would only take memory."""


class TransferService:
    """The handlers; one instance per ingest node.

    Args:
        node: name of the ingest node, recorded with each update.
        coordinator: grants uploads and takes reports.
        authenticator: identifies callers.
        blobs: the models.
        spool: the uploads.
        executor: threads for disk access, hashing and inspection.
        room: limits the unread bytes of downloads.
        meter: counts transferred bytes.
    """

    def __init__(
        self,
        *,
        node: str,
        coordinator: CoordinatorApi,
        authenticator: Authenticator,
        blobs: BlobStore,
        spool: Spool,
        executor: Executor,
        room: DownloadRoom,
        meter: TransferMeter | None = None,
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._authenticator = authenticator
        self._blobs = blobs
        self._open_blobs = OpenBlobs(blobs, executor)
        self._spool = spool
        self._executor = executor
        self._room = room
        self._arrivals = Arrivals(time.time)
        self._meter = meter or TransferMeter()
        self._upload_locks = UploadLocks()

    def handler(self) -> grpc.GenericRpcHandler:
        """The handlers to register with gRPC; uploads and downloads pass as raw bytes."""
        reads: dict[str, Callable[[bytes], Any]] = {
            "GetManifest": transfer_pb2.GetManifestRequest.FromString,
            "GetUploadStatus": transfer_pb2.GetUploadStatusRequest.FromString,
            "Report": transfer_pb2.ReportRequest.FromString,
        }
        unary: dict[str, Callable[..., Any]] = {
            "GetManifest": self.get_manifest,
            "GetUploadStatus": self.get_upload_status,
            "Report": self.report,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                behaviour, request_deserializer=reads[name], response_serializer=_serialise
            )
            for name, behaviour in unary.items()
        }
        handlers["Download"] = grpc.unary_stream_rpc_method_handler(
            self.download, request_deserializer=transfer_pb2.DownloadRequest.FromString
        )
        handlers["Upload"] = grpc.stream_unary_rpc_method_handler(self.upload, response_serializer=_serialise)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def get_manifest(self, request: transfer_pb2.GetManifestRequest, context: Context) -> bytes:
        """The serialised manifest of a blob, with 16 bytes for each MiB of the model."""
        await self._coordinator.grant_download(await self._authenticator.identify(context), request.blob)
        return await in_thread(self._executor, _manifest, self._blobs, request.blob)

    async def download(self, request: transfer_pb2.DownloadRequest, context: Context) -> AsyncIterator[bytes]:
        """Send chunks of a blob, directly from its memory map; the next one is prepared while one is sent."""
        caller = await self._authenticator.identify(context)

        def granted() -> Awaitable[None]:
            return self._coordinator.grant_download(caller, request.blob)

        await granted()
        watch = Watch(self._authenticator, context)
        watch.only_while(granted)
        admission = self._authenticator.admission
        with admission.transfer(caller.name), admission.download(caller.name) as allowance, self._meter.download():
            async with self._open_blobs.open(request.blob) as blob:
                chunks = await in_thread(self._executor, _chunks_asked, request, blob.manifest.chunk_count)
                coming = None
                size = min(blob.manifest.chunk_bytes, blob.manifest.size_bytes)
                for index, following in zip_longest(chunks, chunks[1:]):
                    with self._room.hold(caller.name, size):
                        message = await (coming or in_thread(self._executor, blob.frame, index))
                        crowded = self._meter.downloads_open > AHEAD
                        coming = None
                        if following is not None and not crowded:
                            coming = in_thread(self._executor, blob.frame, following)
                        await watch.check()
                        self._meter.downloaded_chunks += 1
                        self._meter.downloaded_bytes += len(message)
                        allowance.count(len(message))
                        yield message
                        del message

    async def upload(self, requests: AsyncIterator[bytes], context: Context) -> transfer_pb2.UploadResponse:
        """Receive one stream of chunks into a segment of the spool."""
        participant = await self._authenticator.participant(context)
        watch = Watch(self._authenticator, context)
        admission = self._authenticator.admission
        with admission.transfer(participant), admission.upload(participant) as allowance, self._meter.upload():
            async with contextlib.aclosing(watch.over(requests)) as messages:
                first = await anext(messages, None)
                if first is None:
                    return transfer_pb2.UploadResponse()
                allowance.count(len(first))
                return await self._receive(participant, parse_upload(first), messages, watch, allowance)

    async def _receive(
        self, participant: str, first: Chunk, messages: AsyncIterator[bytes], watch: Watch, allowance: Allowance
    ) -> transfer_pb2.UploadResponse:
        key = _key_of(first)
        upload = UploadRef.of(key, participant)
        remember(run=key.run, round=f"{key.round}.{key.attempt}")

        def granted() -> Awaitable[UploadGrant]:
            return self._coordinator.grant_upload(participant, key.run, key.round, key.attempt)

        grant = await granted()
        watch.only_while(granted)
        self._arrivals.began(upload)
        receiver = await in_thread(self._executor, Receiver, self._spool, upload, grant, self._executor)
        try:
            await receiver.add(first)
            self._meter.uploaded_chunks += 1
            self._meter.uploaded_bytes += first.header.payload_bytes
            async for message in messages:
                allowance.count(len(message))
                chunk = parse_upload(message)
                if chunk.key not in {None, key}:
                    raise InvalidRequestError(
                        "upload.key", "a stream carries one upload", "open a stream for each upload"
                    )
                await receiver.add(chunk)
                self._meter.uploaded_chunks += 1
                self._meter.uploaded_bytes += chunk.header.payload_bytes
                del message, chunk
                if self._meter.uploads_open > AHEAD:
                    await receiver.finish()
            await receiver.finish()
        except RejectedUpdateError as error:
            await self._record_rejection(participant, key, str(error))
            raise
        except (ServerError, WireError):
            # chunks that arrived before the failure are kept, and the next status lists them
            with contextlib.suppress(ServerError):
                await receiver.finish()
            raise
        finally:
            receiver.close()
        return transfer_pb2.UploadResponse(chunks=receiver.chunks, payload_bytes=receiver.payload_bytes)

    async def _record_rejection(self, participant: str, key: UploadKey, reason: str) -> None:
        try:
            await self._coordinator.commit(_rejection(participant, key, self._node, reason))
        except ServerError as error:
            log.warning("the rejection of an update is not recorded: %s", error, extra={"run": key.run})

    async def get_upload_status(self, request: transfer_pb2.GetUploadStatusRequest, context: Context) -> bytes:
        """The serialised list of an upload's chunks that the spool holds."""
        participant = await self._authenticator.participant(context)
        key = key_from_proto(request.key)
        await self._coordinator.grant_upload(participant, key.run, key.round, key.attempt)
        async with self._upload_locks.status(participant):
            return await to_end(in_thread(self._executor, _status, self._spool, UploadRef.of(key, participant)))

    async def report(self, request: transfer_pb2.ReportRequest, context: Context) -> transfer_pb2.ReportResponse:
        """Commit an upload: durable and counted once when this returns; a repeated report gets the same answer."""
        participant = await self._authenticator.participant(context)
        remember(run=request.round.run, round=f"{request.round.round}.{request.round.attempt}")
        async with self._upload_locks.commit(
            participant
        ):  # if the same report is sent again meanwhile, it finds its receipt
            return await self._report(participant, request)

    async def _report(self, participant: str, request: transfer_pb2.ReportRequest) -> transfer_pb2.ReportResponse:
        at = request.round
        try:
            grant = await self._coordinator.grant_upload(participant, at.run, at.round, at.attempt)
        except TooLateError:
            return receipt_to_proto(await self._coordinator.commit(Commit(participant, request, self._node, late=True)))
        if grant.receipt is not None:
            _check_same(grant.receipt, request)
            return receipt_to_proto(grant.receipt)
        commit = Commit(participant, request, self._node)
        key = _reported_key(request) if request.upload_id else None
        if key is not None:
            commit = await self._make_durable(participant, request, grant, key)
        receipt = await self._coordinator.commit(commit)
        if key is not None:
            self._arrivals.reported(UploadRef.of(key, participant))
        return receipt_to_proto(receipt)

    async def _make_durable(
        self, participant: str, request: transfer_pb2.ReportRequest, grant: UploadGrant, key: UploadKey
    ) -> Commit:
        upload = UploadRef.of(key, participant)
        began = time.monotonic()
        if request.update:
            done = await self._take_whole(participant, request, grant, key)
        else:
            elements, first = grant.elements, grant.first
            running = in_thread(self._executor, commit_upload, self._spool, upload, elements, request.digest, first)
            done = await to_end(running)
        self._meter.committed(time.monotonic() - began)
        upload_at = self._arrivals.first_byte_at(upload)
        return Commit(participant, request, self._node, done.payload_bytes, done.norm, upload_at=upload_at)

    async def _take_whole(
        self, participant: str, request: transfer_pb2.ReportRequest, grant: UploadGrant, key: UploadKey
    ) -> DurableUpload:
        """Store an update that came inside its report; from here on only the spool holds it."""
        with self._authenticator.admission.upload(participant) as allowance, self._meter.upload():
            allowance.count(len(request.update))
            chunk, upload = parse_upload(request.update), UploadRef.of(key, participant)
            request.ClearField("update")
            if _key_of(chunk) != key:
                raise InvalidRequestError(
                    "upload.key", "the update names another upload than its report", "give both the same upload_id"
                )
            self._arrivals.began(upload)
            try:
                running = in_thread(
                    self._executor, commit_small_update, self._spool, upload, grant, request.digest, chunk
                )
                done = await to_end(running)
            except RejectedUpdateError as error:
                await self._record_rejection(participant, key, str(error))
                raise
            self._meter.uploaded_chunks += 1
            self._meter.uploaded_bytes += done.payload_bytes
            return done


def _manifest(blobs: BlobStore, blob: str) -> bytes:
    return transfer_pb2.GetManifestResponse(manifest=manifest_to_proto(blobs.manifest(blob))).SerializeToString()


def _status(spool: Spool, upload: UploadRef) -> bytes:
    held = merged(record.header.range for record in spool.received(upload))
    return transfer_pb2.GetUploadStatusResponse(held=map(range_to_proto, held)).SerializeToString()


def _reported_key(request: transfer_pb2.ReportRequest) -> UploadKey:
    at = request.round
    return UploadKey(at.run, at.round, at.attempt, request.upload_id)


def _chunks_asked(request: transfer_pb2.DownloadRequest, total: int) -> Sequence[int]:
    if request.chunks:
        return _chunks_named(request, total)
    if request.first_chunk > total:
        raise InvalidRequestError(
            "download.range",
            f"first_chunk {request.first_chunk}: the blob has {total} chunks",
            "ask for chunks within the manifest",
        )
    return range(request.first_chunk, min(total, request.first_chunk + (request.chunk_count or total)))


def _chunks_named(request: transfer_pb2.DownloadRequest, total: int) -> Sequence[int]:
    named = list(request.chunks)
    ascending = all(one < other for one, other in pairwise(named))
    if (
        len(named) > MAX_NAMED_CHUNKS
        or not ascending
        or named[-1] >= total
        or request.first_chunk
        or request.chunk_count
    ):
        raise InvalidRequestError(
            "download.chunks",
            f"{len(named)} chunks from {named[0]} to {named[-1]} of a blob with {total}",
            f"name up to {MAX_NAMED_CHUNKS} of its chunks, ascending; no first_chunk, no chunk_count",
        )
    return named


def _check_same(receipt: ReportReceipt, request: transfer_pb2.ReportRequest) -> None:
    if receipt.digest != request.digest:
        raise ReportRefusedError(
            "report.conflict",
            f"this participant has reported update {receipt.digest[:16]!r} for the round; now it sends "
            f"{request.digest[:16]!r}",
            "the first report counts; report once per round",
        )


def _key_of(chunk: Chunk) -> UploadKey:
    if chunk.key is None:
        raise InvalidRequestError(
            "upload.key", "the first message of an upload stream has no key", "name the upload in the first message"
        )
    if chunk.key.tensor_set != "model":
        raise InvalidRequestError(
            "upload.tensor_set",
            f"tensor set {chunk.key.tensor_set[:80]!r}: this round asks for 'model' only",
            "send the tensor set that the round asked for",
        )
    return chunk.key


def _rejection(participant: str, key: UploadKey, node: str, reason: str) -> Commit:
    at = participation_pb2.RoundKey(run=key.run, round=key.round, attempt=key.attempt)
    report = transfer_pb2.ReportRequest(round=at, upload_id=key.upload_id)
    return Commit(participant, report, node, rejection=reason)


def _serialise(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
