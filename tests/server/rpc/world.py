"""A real daemon in this process, with TLS, and callers that use it over gRPC like clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from atoll.server.config.config import ServerConfig
from atoll.server.control import Following
from atoll.server.process.ports import Addresses
from atoll.server.process.server import Daemon
from atoll.wire.chunks import Chunk, ElementRange, UploadKey, frame_upload, header_of, key_to_proto, update_digest
from atoll.wire.digest import BlobManifest
from atoll.wire.encoding import Encoding, encode
from atoll.wire.join_token import JoinToken
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_to_proto, manifest_to_proto
from atoll.wire.status import ErrorDetail, detail_from_trailers
from atoll.wire.v1 import (
    control_pb2,
    control_pb2_grpc,
    enrolment_pb2,
    enrolment_pb2_grpc,
    participation_pb2,
    participation_pb2_grpc,
    tensors_pb2,
    transfer_pb2,
    transfer_pb2_grpc,
)
from tests.patience import WAIT_S

if TYPE_CHECKING:
    from atoll.wire.v1.control_pb2_grpc import ControlServiceAsyncStub
    from atoll.wire.v1.participation_pb2_grpc import ParticipationServiceAsyncStub
    from atoll.wire.v1.transfer_pb2_grpc import TransferServiceAsyncStub

LAYOUT = Layout((TensorSpec("w", (30, 8), Dtype.FLOAT32), TensorSpec("b", (10,), Dtype.FLOAT32)))
Values = npt.NDArray[np.float32]
TRANSFER = "/atoll.wire.v1.TransferService"
JOB = """
[job]
name = "test"
rounds = {rounds}
[model]
initial = "x.safetensors"
[cohort]
size = {size}
quorum = {quorum}
[straggler]
report_window_s = {window_s}
retry_delay_s = 0.0
{straggler}
[evaluation]
{evaluation}
"""


def job(  # the parts of a job file that tests change
    *,
    rounds: int = 1,
    size: int = 1,
    quorum: int | None = None,
    window_s: float = WAIT_S,
    straggler: str = "",
    evaluation: str = "final = false\nbefore_training = false",
) -> bytes:
    quorum = size if quorum is None else quorum
    text = JOB.format(
        rounds=rounds, size=size, quorum=quorum, window_s=window_s, straggler=straggler, evaluation=evaluation
    )
    return text.encode()


def initial_values() -> Values:
    return np.linspace(-1.0, 1.0, LAYOUT.size, dtype=np.float32)


def update_values(seed: int) -> Values:
    return np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)


def chunks_of(values: Values, step: int = 100) -> list[Chunk]:
    chunks = []
    for start in range(0, values.size, step):
        part = values[start : start + step]
        payload = encode(part, Encoding.FLOAT32).tobytes()
        header = header_of(ElementRange.run(start, part.size), Encoding.FLOAT32, payload)
        chunks.append(Chunk(header, memoryview(payload), None))
    return chunks


def frames_of(key: UploadKey | None, chunks: Sequence[Chunk]) -> list[bytes]:
    return [
        frame_upload(chunk.header, chunk.payload, key if place == 0 else None) for place, chunk in enumerate(chunks)
    ]


@dataclass(frozen=True)
class Refusal:
    """The status and details of a refused call."""

    status: grpc.StatusCode
    detail: ErrorDetail | None


async def refusal(call: Any) -> Refusal:
    """Await a call that must fail."""
    try:
        await asyncio.wait_for(call, WAIT_S)
    except grpc.aio.AioRpcError as error:
        return Refusal(error.code(), detail_from_trailers(list(error.trailing_metadata() or ())))
    raise AssertionError("the call was not refused")


async def refused_detail(call: Any) -> ErrorDetail:
    """The detail of a call that must fail."""
    found = await refusal(call)
    assert found.detail is not None, found
    assert found.detail.message
    return found.detail


async def refused_code(call: Any) -> tuple[str, str]:
    """Status and code of the detail of a call that must fail."""
    found = await refusal(call)
    assert found.detail is not None, found
    assert found.detail.message
    return found.status.name, found.detail.code


async def each(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


class Caller:
    """A channel and the stubs on it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.control: ControlServiceAsyncStub = control_pb2_grpc.ControlServiceStub(channel)
        self.participation: ParticipationServiceAsyncStub = participation_pb2_grpc.ParticipationServiceStub(channel)
        self.transfer: TransferServiceAsyncStub = transfer_pb2_grpc.TransferServiceStub(channel)
        self.renewal = enrolment_pb2_grpc.RenewalServiceStub(channel)

    def upload(self, frames: Iterable[bytes] | AsyncIterator[bytes]) -> Any:
        """Begin an upload stream of framed messages."""
        stream: Any = self.channel.stream_unary(
            f"{TRANSFER}/Upload", response_deserializer=transfer_pb2.UploadResponse.FromString
        )
        return stream(frames)

    def raw(self, method: str, message: bytes) -> Any:
        """A unary call with bytes of the caller's choice."""
        call: Any = self.channel.unary_unary(method)
        return call(message, timeout=WAIT_S)


@dataclass
class Key:
    """A private key, and the request that proves it."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def csr(self) -> bytes:
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(self.key, hashes.SHA256())
        return request.public_bytes(serialization.Encoding.PEM)


class Participant(Caller):
    """An enrolled participant; ``check_in`` opens its stream."""

    def __init__(self, channel: grpc.aio.Channel, name: str, key: Key, certificate: bytes) -> None:
        super().__init__(channel)
        self.name = name
        self.key = key
        self.certificate = certificate

    @contextlib.asynccontextmanager
    async def check_in(self, *, examples: int = 10, **hello: Any) -> AsyncIterator[Stream]:
        """Say hello and wait for the welcome."""
        stream = Stream(self.participation.CheckIn())
        greeting = participation_pb2.Hello(
            protocol=1,
            examples=examples,
            encodings=[tensors_pb2.Encoding.ValueType(item) for item in Encoding],
            **hello,
        )
        try:
            await stream.write(participation_pb2.CheckInRequest(hello=greeting))
            assert (await stream.next("welcome")).participant == self.name
            yield stream
        finally:
            stream.call.cancel()

    def upload_key(self, at: participation_pb2.RoundKey, number: int = 1) -> UploadKey:
        return UploadKey(at.run, at.round, at.attempt, f"{number:032x}")

    async def send(self, at: participation_pb2.RoundKey, values: Values, number: int = 1) -> str:
        """Upload a whole update; returns its digest."""
        chunks = chunks_of(values)
        await asyncio.wait_for(self.upload(frames_of(self.upload_key(at, number), chunks)), WAIT_S)
        return update_digest([chunk.header for chunk in chunks])

    async def report(
        self, at: participation_pb2.RoundKey, values: Values, *, number: int = 1, weight: int = 10, **fields: Any
    ) -> transfer_pb2.ReportResponse:
        """Upload an update and report it."""
        digest = await self.send(at, values, number)
        return await self.claim(at, digest, number=number, weight=weight, **fields)

    async def claim(
        self, at: participation_pb2.RoundKey, digest: str, *, number: int = 1, weight: int = 10, **fields: Any
    ) -> transfer_pb2.ReportResponse:
        """Report an upload."""
        request = transfer_pb2.ReportRequest(
            round=at, upload_id=f"{number:032x}", digest=digest, weight=weight, **fields
        )
        return await self.transfer.Report(request, timeout=WAIT_S)

    async def status(self, at: participation_pb2.RoundKey, number: int = 1) -> transfer_pb2.GetUploadStatusResponse:
        key = key_to_proto(self.upload_key(at, number))
        return await self.transfer.GetUploadStatus(transfer_pb2.GetUploadStatusRequest(key=key), timeout=WAIT_S)


class Stream:
    """One check-in stream."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def write(self, message: participation_pb2.CheckInRequest) -> None:
        await asyncio.wait_for(self.call.write(message), WAIT_S)

    async def next(self, kind: str) -> Any:
        """The next instruction, which must be of this kind."""
        message = await self.read()
        assert message is not None, "the stream ended"
        assert message.WhichOneof("message") == kind, message
        return getattr(message, kind)

    async def read(self) -> participation_pb2.CheckInResponse | None:
        """The next instruction; None at the end of the stream."""
        message = await asyncio.wait_for(self.call.read(), WAIT_S)
        return message if isinstance(message, participation_pb2.CheckInResponse) else None

    async def reply(self, at: participation_pb2.RoundKey, verdict: int, reason: str = "") -> None:
        answer = participation_pb2.TaskReply(
            key=at, verdict=participation_pb2.TaskReply.Verdict.ValueType(verdict), reason=reason
        )
        await self.write(participation_pb2.CheckInRequest(reply=answer))


class World:
    """A daemon with its operator; makes participants."""

    def __init__(self, data: Path, **settings: Any) -> None:
        chosen: dict[str, Any] = {"data": data, "port": 0, "drain_s": 0.0, "silence_s": 0.1} | settings
        self.config = ServerConfig(**chosen)
        self.daemon = Daemon(self.config)
        self.addresses: Addresses
        self.operator: Caller
        self._stack = contextlib.AsyncExitStack()
        self.ca = b""

    async def __aenter__(self) -> World:
        self.addresses = await self.daemon.start()
        self._stack.push_async_callback(self.daemon.stop)
        if self.addresses.operator is not None:
            kept = SimpleNamespace(**json.loads(self.addresses.operator.read_text()))
            self.ca = kept.ca_certificate.encode()
            self.operator = Caller(await self.channel(kept.key.encode(), kept.certificate.encode()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def channel(
        self, key: bytes | None = None, certificate: bytes | None = None, address: str | None = None
    ) -> grpc.aio.Channel:
        """A channel with a client certificate, or without one."""
        credentials = grpc.ssl_channel_credentials(self.ca, key, certificate)
        # Channels to one address share a connection by default, and with it the certificate.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20)]
        channel = grpc.aio.secure_channel(address or self.addresses.main, credentials, options=options)
        return await self._stack.enter_async_context(channel)

    async def plain(self, metadata: dict[str, str]) -> Caller:
        """A caller without TLS, whose id the server does not verify."""

        class Claims(grpc.aio.UnaryUnaryClientInterceptor):
            async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
                claimed = grpc.aio.Metadata(*metadata.items())
                return await continuation(client_call_details._replace(metadata=claimed), request)

        channel = grpc.aio.insecure_channel(self.addresses.main, interceptors=[Claims()])
        return Caller(await self._stack.enter_async_context(channel))

    async def token(
        self,
        organisation: str = "acme",
        *,
        lifetime_s: float = 600.0,
        kind: enrolment_pb2.ParticipantKind.ValueType = enrolment_pb2.PARTICIPANT_KIND_EDGE,
        by: Caller | None = None,
        **binding: Any,
    ) -> JoinToken:
        request = control_pb2.CreateTokenRequest(
            organisation=organisation, kind=kind, lifetime_s=lifetime_s, count=1, **binding
        )
        made = await (by or self.operator).control.CreateToken(request, timeout=WAIT_S)
        return JoinToken.decode(made.tokens[0])

    async def enrol_with(self, token: JoinToken, key: Key, **changes: Any) -> enrolment_pb2.EnrolResponse:
        request = enrolment_pb2.EnrolRequest(
            **({"token_id": token.token_id, "secret": token.secret, "csr_pem": key.csr} | changes)
        )
        channel = await self.channel(address=self.addresses.enrolment)
        answer: enrolment_pb2.EnrolResponse = await enrolment_pb2_grpc.EnrolmentServiceStub(channel).Enrol(
            request, timeout=WAIT_S
        )
        return answer

    async def participant(self, organisation: str = "acme") -> Participant:
        key = Key()
        answer = await self.enrol_with(await self.token(organisation), key)
        channel = await self.channel(key.pem, answer.certificate_pem)
        return Participant(channel, answer.participant, key, answer.certificate_pem)

    async def upload_model(self, values: Values | None = None, chunk_bytes: int = 1024) -> str:
        """Upload an initial model; returns its blob."""
        raw = (initial_values() if values is None else values).tobytes()
        manifest = BlobManifest.of_buffer(raw, chunk_bytes)
        answer = await self.operator.control.UploadModel(each(model_requests(raw, manifest)), timeout=WAIT_S)
        assert answer.blob == manifest.name
        return answer.blob

    async def submit(self, job_toml: bytes | None = None) -> str:
        answer = await self.operator.control.SubmitRun(
            control_pb2.SubmitRunRequest(
                job_toml=job() if job_toml is None else job_toml,
                file_name="job.toml",
                layout=layout_to_proto(LAYOUT),
                initial_blob=await self.upload_model(),
            ),
            timeout=WAIT_S,
        )
        return answer.run

    async def until(self, run: str, wanted: str) -> control_pb2.WatchRunResponse:
        """Watch a run until its round reaches the given phase, or its status is the given one."""
        async with asyncio.timeout(WAIT_S):
            following = Following()
            async for message in self.operator.control.WatchRun(control_pb2.WatchRunRequest(run=run)):
                seen = following.complete(message)
                if seen is None:
                    continue
                status = control_pb2.RunStatus.Name(seen.summary.status).removeprefix("RUN_STATUS_").lower()
                if wanted in (seen.round.phase, status):
                    return seen
        raise AssertionError(f"the run ended before it was {wanted}")


def model_requests(raw: bytes, manifest: BlobManifest) -> list[control_pb2.UploadModelRequest]:
    requests = []
    for index in range(manifest.chunk_count):
        start, stop = manifest.chunk_range(index)
        request = control_pb2.UploadModelRequest(index=index, payload=raw[start:stop])
        if index == 0:
            request.manifest.CopyFrom(manifest_to_proto(manifest))
        requests.append(request)
    return requests
