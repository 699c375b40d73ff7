"""A small federation server for the client's tests: real gRPC on loopback, scripted, with faults on request."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar

import grpc
import numpy as np
import numpy.typing as npt

from atoll.client import Limits, Model, Participant, Task, Update
from atoll.client._connection.endpoint import Endpoint
from atoll.client._session.session import Session, Summary
from atoll.client.events import Event
from atoll.wire.chunks import ChunkHeader, check_coverage, header_from_proto, merged, range_to_proto, update_digest
from atoll.wire.digest import BlobManifest, chunk_digest
from atoll.wire.encoding import Encoding, decode
from atoll.wire.errors import CoverageError
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import SettingValue, layout_to_proto, manifest_to_proto, settings_to_proto
from atoll.wire.status import ErrorDetail, Fault
from atoll.wire.v1 import participation_pb2 as part
from atoll.wire.v1 import participation_pb2_grpc, tensors_pb2, transfer_pb2, transfer_pb2_grpc
from tests.patience import WAIT_S
from tests.ports import free_ports

EventType = TypeVar("EventType", bound=Event)

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


MODEL = {"weight": np.arange(6000, dtype=np.float32).reshape(200, 30), "bias": np.zeros(30, np.float32)}
FAST = Limits(
    connect_s=WAIT_S,
    call_s=WAIT_S,
    stall_s=WAIT_S,
    backoff_base_s=0.01,
    backoff_cap_s=0.05,
    drain_s=WAIT_S / 3,
    give_up_after_s=WAIT_S,
)
"""Short delays before a retry. All other limits are those of a busy machine; a test that reaches one sets it."""


class AddOne(Participant):
    """Adds 1 to every weight."""

    examples = 7

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.closed = 0

    def fit(self, model: Model, task: Task) -> Update:
        self.tasks.append(task)
        return Update(weights={name: view + np.float32(1) for name, view in model.items()}, weight=7)

    def close(self) -> None:
        self.closed += 1


class Gated(AddOne):
    """Trains until the test lets it end, or until it is stopped; then it reports a partial update."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.release = threading.Event()
        self._loop = asyncio.get_running_loop()

    def fit(self, model: Model, task: Task) -> Update:
        self._loop.call_soon_threadsafe(self.started.set)
        with task.control.on_stop(self.release.set):
            assert self.release.wait(WAIT_S)
        update = super().fit(model, task)
        return dataclasses.replace(update, partial=task.should_stop)

    async def training(self) -> None:
        """Wait until fit is under way."""
        await asyncio.wait_for(self.started.wait(), WAIT_S)
        self.started.clear()


@dataclass
class Run:
    """A session under test."""

    session: Session
    task: asyncio.Task[Summary]
    events: list[Event]
    news: asyncio.Event

    async def saw(self, kind: type[EventType], times: int = 1) -> list[EventType]:
        """Wait until the session has sent ``times`` events of a kind."""
        async with asyncio.timeout(WAIT_S):
            while len(self.of(kind)) < times:
                self.news.clear()
                await self.news.wait()
        return self.of(kind)

    async def stop(self) -> None:
        """End the session; ``finished`` gets the errors of sessions that are meant to fail."""
        self.session.stop("the test is over")
        await asyncio.wait({self.task}, timeout=WAIT_S)
        assert self.task.done()

    async def finished(self) -> Summary:
        return await asyncio.wait_for(self.task, WAIT_S)

    def of(self, kind: type[EventType]) -> list[EventType]:
        return [event for event in self.events if isinstance(event, kind)]


class Addressed(Protocol):
    """The part of a server that a session needs."""

    @property
    def address(self) -> str: ...


def running(server: Addressed, participant: Participant, state: Path, *, limits: Limits = FAST, **options: Any) -> Run:
    """Start a session in this loop."""
    state.mkdir(exist_ok=True)
    events: list[Event] = []
    news = asyncio.Event()
    loop = asyncio.get_running_loop()

    def observe(event: Event) -> None:
        events.append(event)
        loop.call_soon_threadsafe(news.set)

    endpoint = options.pop("endpoint", None) or Endpoint(server.address, None, "p1")
    session = Session(participant, endpoint, state, limits=limits, observer=observe, **options)
    return Run(session, loop.create_task(session.run()), events, news)


def layout_for(arrays: Mapping[str, npt.NDArray[Any]]) -> Layout:
    """The layout of float arrays."""
    return Layout(tuple(TensorSpec(name, array.shape, Dtype(array.dtype.name)) for name, array in arrays.items()))


@dataclass
class Upload:
    """The parts of one upload that have arrived."""

    headers: dict[int, ChunkHeader] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)

    def flat(self, size: int) -> npt.NDArray[np.float64]:
        """All elements, checked for exact coverage."""
        check_coverage([header.range for header in self.headers.values()], size)
        out = np.empty(size)
        for offset, header in self.headers.items():
            out[offset : offset + header.range.size] = decode(self.payloads[offset], header.encoding, header.range.size)
        return out


@dataclass
class Faults:
    """The faults to inject, and how many times."""

    break_upload_after: list[int] = field(default_factory=list)
    break_download_after: list[int] = field(default_factory=list)
    flip_download: list[int] = field(default_factory=list)
    lose_report_ack: int = 0
    hold_report: asyncio.Event | None = None
    """The report is counted at once, its answer waits for this."""
    hold_check_in: asyncio.Event | None = None
    """The answer to a single call with answers to tasks waits for this."""
    lose_chunks: int = 0
    refuse_report: ErrorDetail | None = None
    bar: ErrorDetail | None = None
    bar_report: ErrorDetail | None = None
    stall_uploads: int = 0


class Federation(participation_pb2_grpc.ParticipationServiceServicer, transfer_pb2_grpc.TransferServiceServicer):
    """A server with one model and one participant at a time; its calls are in queues."""

    def __init__(
        self,
        model: Mapping[str, npt.NDArray[Any]],
        chunk_bytes: int = 1024,
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._options = options
        self.layout = layout_for(model)
        self.chunk_bytes = chunk_bytes
        self.faults = Faults()
        self.hellos: asyncio.Queue[part.Hello] = asyncio.Queue()
        self.replies: asyncio.Queue[part.TaskReply] = asyncio.Queue()
        self.reports: asyncio.Queue[transfer_pb2.ReportRequest] = asyncio.Queue()
        self.uploads: dict[str, Upload] = {}
        self.reported: dict[str, str] = {}
        self.download_starts: list[int] = []
        self.upload_streams: list[int] = []
        self.manifests = 0
        self.metadata: list[tuple[str, str]] = []
        self.return_spread_s = 0.0
        self.ping_s = 0.0
        self.return_after_s = 60.0
        self.return_when_done = False
        self.unary: asyncio.Queue[part.CheckInOnceRequest] = asyncio.Queue()
        self.asked = False  # for some of the elements only: the test looks at them itself
        self.port = free_ports()
        self._push: asyncio.Queue[part.CheckInResponse | None] = asyncio.Queue()
        self._pushing: asyncio.Task[part.CheckInResponse | None] | None = None
        """The newest stream's wait for the next message: none goes to a stream whose end has not been noticed yet."""
        self._connected = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self.set_model(model)

    def set_model(self, model: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace the global model."""
        self.blob = b"".join(np.ascontiguousarray(model[spec.name]).tobytes() for spec in self.layout.tensors)
        self.manifest = BlobManifest.of_buffer(self.blob, self.chunk_bytes)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Listen; on the same port as before after ``kill``."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *self._options])
        participation_pb2_grpc.add_ParticipationServiceServicer_to_server(self, server)
        transfer_pb2_grpc.add_TransferServiceServicer_to_server(self, server)
        self.add_services(server)
        self.port = self.listen(server, f"127.0.0.1:{self.port}")
        await server.start()
        self._server = server

    def add_services(self, server: grpc.aio.Server) -> None:
        """A hook for servers with more services."""

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """Plaintext; overridden for TLS."""
        return server.add_insecure_port(address)

    async def kill(self) -> None:
        """Drop every call and stop listening."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    # -- what the test does -------------------------------------------------------------------------------------------

    async def hello(self) -> part.Hello:
        return await asyncio.wait_for(self.hellos.get(), WAIT_S)

    async def reply(self) -> part.TaskReply:
        return await asyncio.wait_for(self.replies.get(), WAIT_S)

    async def report(self) -> transfer_pb2.ReportRequest:
        return await asyncio.wait_for(self.reports.get(), WAIT_S)

    def push(self, message: part.CheckInResponse) -> None:
        self._push.put_nowait(message)

    def end_stream(self) -> None:
        """Close the check-in stream without an error."""
        self._push.put_nowait(None)

    def participate(
        self,
        round_: int = 0,
        *,
        attempt: int = 0,
        run: str = "r1",
        remaining_s: float = WAIT_S,
        settings: Mapping[str, SettingValue] | None = None,
        encoding: Encoding = Encoding.FLOAT32,
        **fields: Any,
    ) -> part.Participate:
        """An invitation to train the current model; ``fields`` override those of the message."""
        message = part.Participate(
            key=part.RoundKey(run=run, round=round_, attempt=attempt),
            kind=part.Participate.KIND_TRAIN,
            run_name="demo",
            rounds_total=3,
            cohort_size=2,
            max_weight=100,
            max_abs=32.0,
            inputs=[tensors_pb2.TensorSet(name="model", layout=layout_to_proto(self.layout), blob=self.manifest.name)],
            settings=settings_to_proto(settings or {}),
            remaining_s=remaining_s,
            encoding=tensors_pb2.Encoding.ValueType(encoding),
        )
        message.MergeFrom(part.Participate(**fields))
        self.asked = bool(message.ranges)
        return message

    def inline(self, **changes: Any) -> tensors_pb2.TensorSet:
        """Return the ``inputs`` with which an invitation contains the current model."""
        fields: dict[str, Any] = {"name": "model", "layout": layout_to_proto(self.layout), "blob": self.manifest.name}
        fields |= {"content": self.blob, "chunk_bytes": self.manifest.chunk_bytes}
        return tensors_pb2.TensorSet(**(fields | changes))

    def invite(self, *args: Any, **kwargs: Any) -> None:
        self.push(part.CheckInResponse(participate=self.participate(*args, **kwargs)))

    def stop(self, round_: int = 0, *, run: str = "r1", reason: str = "enough", late: bool = False) -> None:
        stop = part.Stop(key=part.RoundKey(run=run, round=round_), reason=reason, late_report_welcome=late)
        self.push(part.CheckInResponse(stop=stop))

    def update_of(self, report: transfer_pb2.ReportRequest) -> npt.NDArray[np.float64]:
        """The elements of a reported update."""
        return self.uploads[report.upload_id].flat(self.layout.size)

    # -- ParticipationService -----------------------------------------------------------------------------------------

    async def CheckIn(  # noqa: N802
        self, request_iterator: AsyncIterator[part.CheckInRequest], context: Context
    ) -> AsyncIterator[part.CheckInResponse]:
        self.metadata = [(key, str(value)) for key, value in context.invocation_metadata() or ()]
        if self.faults.bar is not None:
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, self.faults.bar)
        first = await anext(request_iterator)
        if self._pushing is not None:
            self._pushing.cancel()
            self._pushing = None
        self.hellos.put_nowait(first.hello)
        yield part.CheckInResponse(welcome=self.welcome())
        reader = asyncio.create_task(self._read(request_iterator))
        self._pushing = push = asyncio.create_task(self._push.get())
        try:
            while True:
                await asyncio.wait({push, reader}, return_when=asyncio.FIRST_COMPLETED)
                if not push.done() or push.cancelled() or push.result() is None:
                    return
                yield push.result() or part.CheckInResponse()
                if self._pushing is not push:
                    return
                self._pushing = push = asyncio.create_task(self._push.get())
        finally:
            reader.cancel()
            push.cancel()

    async def CheckInOnce(  # noqa: N802
        self, request: part.CheckInOnceRequest, context: Context
    ) -> part.CheckInOnceResponse:
        """Answer with the pushed messages; while there are none, a call that may be held waits."""
        if self.faults.bar is not None:
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, self.faults.bar)
        self.unary.put_nowait(request)
        for reply in request.replies:
            self.replies.put_nowait(reply)
        pushed: list[part.CheckInResponse] = []
        if request.wait_s and self._push.empty() and (first := await self._push.get()) is not None:
            pushed.append(first)
        while not self._push.empty() and (message := self._push.get_nowait()) is not None:
            pushed.append(message)
        if request.replies and self.faults.hold_check_in is not None:
            await self.faults.hold_check_in.wait()
        return part.CheckInOnceResponse(
            welcome=self.welcome(),
            instructions=pushed,
            return_after_s=self.return_after_s,
            return_when_done=self.return_when_done,
        )

    def welcome(self) -> part.Welcome:
        return part.Welcome(
            participant="p1",
            protocol=1,
            server_version="0",
            chunk_bytes=self.chunk_bytes,
            certificate_remaining_s=-1,
            return_spread_s=self.return_spread_s,
            ping_s=self.ping_s,
        )

    async def _read(self, requests: AsyncIterator[part.CheckInRequest]) -> None:
        async for message in requests:
            self.replies.put_nowait(message.reply)

    # -- TransferService ----------------------------------------------------------------------------------------------

    async def GetManifest(  # noqa: N802
        self, request: transfer_pb2.GetManifestRequest, context: Context
    ) -> transfer_pb2.GetManifestResponse:
        self.manifests += 1
        if request.blob != self.manifest.name:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no blob {request.blob}")
        return transfer_pb2.GetManifestResponse(manifest=manifest_to_proto(self.manifest))

    async def Download(  # noqa: N802
        self, request: transfer_pb2.DownloadRequest, context: Context
    ) -> AsyncIterator[transfer_pb2.DownloadResponse]:
        self.download_starts.append(request.first_chunk)
        faults = self.faults
        until = faults.break_download_after.pop(0) if faults.break_download_after else None
        wanted = request.chunks or range(request.first_chunk, self.manifest.chunk_count)
        for sent, index in enumerate(wanted):
            if sent == until:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the download broke")
            start, stop = self.manifest.chunk_range(index)
            payload = self.blob[start:stop]
            if index in faults.flip_download:
                faults.flip_download.remove(index)
                payload = bytes([payload[0] ^ 1]) + payload[1:]
            yield transfer_pb2.DownloadResponse(index=index, payload=payload)

    async def Upload(  # noqa: N802
        self, request_iterator: AsyncIterator[transfer_pb2.UploadRequest], context: Context
    ) -> transfer_pb2.UploadResponse:
        faults = self.faults
        until = faults.break_upload_after.pop(0) if faults.break_upload_after else None
        upload = Upload()
        received = 0
        async for message in request_iterator:
            if message.HasField("key"):
                upload = self.uploads.setdefault(message.key.upload_id, Upload())
            if received == until:
                self.upload_streams.append(received)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the upload broke")
            if faults.stall_uploads:
                faults.stall_uploads -= 1
                await asyncio.Event().wait()
            header = header_from_proto(message.chunk)
            if chunk_digest(message.payload) != header.digest:
                await context.abort(grpc.StatusCode.DATA_LOSS, "wrong digest")
            upload.headers[header.range.offset] = header
            upload.payloads[header.range.offset] = message.payload
            received += 1
        self.upload_streams.append(received)
        return transfer_pb2.UploadResponse(chunks=received)

    async def GetUploadStatus(  # noqa: N802
        self, request: transfer_pb2.GetUploadStatusRequest, context: Context
    ) -> transfer_pb2.GetUploadStatusResponse:
        del context
        upload = self.uploads.get(request.key.upload_id, Upload())
        held = merged(header.range for header in upload.headers.values())
        return transfer_pb2.GetUploadStatusResponse(held=map(range_to_proto, held))

    async def Report(  # noqa: N802
        self, request: transfer_pb2.ReportRequest, context: Context
    ) -> transfer_pb2.ReportResponse:
        faults = self.faults
        if faults.bar_report is not None:
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, faults.bar_report)
        if faults.refuse_report is not None:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, faults.refuse_report)
        if request.update:
            chunk = transfer_pb2.UploadRequest.FromString(request.update)
            upload = self.uploads.setdefault(chunk.key.upload_id, Upload())
            header = header_from_proto(chunk.chunk)
            upload.headers[header.range.offset], upload.payloads[header.range.offset] = header, chunk.payload
        if request.upload_id:
            await self._commit(request, context)
        if faults.lose_report_ack:
            faults.lose_report_ack -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        self.reports.put_nowait(request)
        if faults.hold_report is not None:
            await faults.hold_report.wait()
        counted = transfer_pb2.ReportResponse.DISPOSITION_COUNTED
        return transfer_pb2.ReportResponse(disposition=counted, digest=request.digest)

    async def _commit(self, request: transfer_pb2.ReportRequest, context: Context) -> None:
        upload = self.uploads[request.upload_id]
        for _ in range(self.faults.lose_chunks):
            offset = max(upload.headers)
            del upload.headers[offset], upload.payloads[offset]
        self.faults.lose_chunks = 0
        try:
            if not self.asked:
                upload.flat(self.layout.size)
        except CoverageError as error:
            detail = ErrorDetail("upload.incomplete", Fault.CALLER, str(error))
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, detail)
        assert update_digest(list(upload.headers.values())) == request.digest
        known = self.reported.setdefault(str(request.round), request.upload_id)
        if known != request.upload_id:
            detail = ErrorDetail("upload.conflict", Fault.CALLER, "another update was reported for this round")
            await refuse(context, grpc.StatusCode.ALREADY_EXISTS, detail)


async def refuse(context: Context, code: grpc.StatusCode, detail: ErrorDetail) -> NoReturn:
    """End the call with an error that carries its detail."""
    context.set_trailing_metadata((detail.trailer(),))
    await context.abort(code, detail.message)
