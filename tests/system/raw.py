"""A participant without the SDK: speaks the protocol itself, so it can send messages that the SDK would not."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from atoll.client._connection.enrolment import enrol
from atoll.client._connection.identity import Identity
from atoll.wire.chunks import (
    ChunkHeader,
    ElementRange,
    UploadKey,
    frame_upload,
    header_of,
    key_to_proto,
    range_from_proto,
    update_digest,
)
from atoll.wire.encoding import Encoding
from atoll.wire.messages import PROTOCOL
from atoll.wire.status import ErrorDetail, detail_from_trailers
from atoll.wire.v1 import participation_pb2, participation_pb2_grpc, tensors_pb2, transfer_pb2, transfer_pb2_grpc
from tests.patience import WAIT_S

ACCEPTED = participation_pb2.TaskReply.VERDICT_ACCEPTED
Values = npt.NDArray[np.float32]


class RawParticipant:
    """One identity, one check-in stream, and transfers by hand; every wait has a limit."""

    def __init__(self, token: str, state: Path, examples: int = 10) -> None:
        self.identity: Identity = enrol(token, state)
        self.examples = examples
        self._channel = grpc.secure_channel(self.identity.server_address, self.identity.credentials())
        self._transfer = transfer_pb2_grpc.TransferServiceStub(self._channel)
        self._upload: grpc.StreamUnaryMultiCallable[bytes, transfer_pb2.UploadResponse] = self._channel.stream_unary(
            "/atoll.wire.v1.TransferService/Upload", response_deserializer=transfer_pb2.UploadResponse.FromString
        )
        self._outbox: queue.Queue[participation_pb2.CheckInRequest | None] = queue.Queue()
        stub = participation_pb2_grpc.ParticipationServiceStub(self._channel)
        self._pushed = stub.CheckIn(self._requests(), timeout=3 * WAIT_S)

    @property
    def name(self) -> str:
        return self.identity.participant

    def check_in(self) -> None:
        """Say hello and wait for the welcome."""
        hello = participation_pb2.Hello(
            protocol=PROTOCOL, examples=self.examples, encodings=[tensors_pb2.ENCODING_FLOAT32]
        )
        self._outbox.put(participation_pb2.CheckInRequest(hello=hello))
        assert next(self._pushed).WhichOneof("message") == "welcome"

    def accept(self) -> participation_pb2.Participate:
        """Wait for a task and accept it."""
        pushed = next(self._pushed)
        assert pushed.WhichOneof("message") == "participate", pushed
        reply = participation_pb2.TaskReply(key=pushed.participate.key, verdict=ACCEPTED)
        self._outbox.put(participation_pb2.CheckInRequest(reply=reply))
        return pushed.participate

    def upload(self, key: participation_pb2.RoundKey, values: Values, *, first: int = 0) -> tuple[str, ChunkHeader]:
        """Send one chunk from element ``first`` on, with a new upload id; returns the id and the chunk's header."""
        upload_id = secrets.token_hex(16)
        payload = values.tobytes()
        header = header_of(ElementRange.run(first, values.size), Encoding.FLOAT32, payload)
        frame = frame_upload(header, payload, UploadKey(key.run, key.round, key.attempt, upload_id))
        self._upload(iter([frame]), timeout=WAIT_S)
        return upload_id, header

    def held(self, key: participation_pb2.RoundKey, upload_id: str) -> list[ElementRange]:
        """Return the ranges of an upload that the server has."""
        named = key_to_proto(UploadKey(key.run, key.round, key.attempt, upload_id))
        answer = self._transfer.GetUploadStatus(transfer_pb2.GetUploadStatusRequest(key=named), timeout=WAIT_S)
        return [range_from_proto(span) for span in answer.held]

    def begin_upload(self, frames: Iterator[bytes]) -> grpc.Future[transfer_pb2.UploadResponse]:
        """Send frames as they become available; returns the pending call."""
        return self._upload.future(frames, timeout=3 * WAIT_S)

    def report(
        self, key: participation_pb2.RoundKey, upload_id: str, *headers: ChunkHeader, **fields: Any
    ) -> transfer_pb2.ReportResponse:
        """Report an upload that consists of these chunks."""
        request = transfer_pb2.ReportRequest(round=key, upload_id=upload_id, digest=update_digest(headers))
        request.MergeFrom(transfer_pb2.ReportRequest(**{"weight": self.examples, **fields}))
        return self._transfer.Report(request, timeout=WAIT_S)

    def close(self) -> None:
        """Leave."""
        self._outbox.put(None)
        self._channel.close()

    def _requests(self) -> Iterator[participation_pb2.CheckInRequest]:
        while (request := self._outbox.get()) is not None:
            yield request


def refusal(error: grpc.RpcError) -> tuple[grpc.StatusCode, ErrorDetail]:
    """Status and detail of a refused call."""
    detail = detail_from_trailers([(item.key, item.value) for item in error.trailing_metadata() or ()])
    assert detail is not None, error
    return error.code(), detail
