"""The calls of TransferService on one channel, with payload messages as serialised bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from atoll.wire.v1 import transfer_pb2, transfer_pb2_grpc

if TYPE_CHECKING:
    import grpc

    from atoll.client._connection.endpoint import Endpoint

_SERVICE = "/atoll.wire.v1.TransferService"


class ByteStream(Protocol):
    """A server stream of serialised messages."""

    def __iter__(self) -> Iterator[bytes]:
        """The messages, in order of arrival."""
        ...

    def cancel(self) -> None:
        """End the call."""
        ...


class TransferCalls:
    """One channel, shared by consecutive tasks; thread-safe.

    ``Upload`` and ``Download`` pass whole serialised messages: ``atoll.wire.chunks`` frames and parses them without
    copying the payload again.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._spent: grpc.Channel | None = None
        self._connect(endpoint)

    def renew(self, endpoint: Endpoint) -> None:
        """Use this endpoint for new calls; the old channel stays open for running calls until the next renewal."""
        if self._spent is not None:
            self._spent.close()
        self._spent = self._channel
        self._connect(endpoint)

    def _connect(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._channel = endpoint.open()
        self._stub = transfer_pb2_grpc.TransferServiceStub(self._channel)
        self._download: grpc.UnaryStreamMultiCallable[transfer_pb2.DownloadRequest, bytes] = self._channel.unary_stream(
            f"{_SERVICE}/Download", request_serializer=transfer_pb2.DownloadRequest.SerializeToString
        )
        self._upload: grpc.StreamUnaryMultiCallable[bytes, transfer_pb2.UploadResponse] = self._channel.stream_unary(
            f"{_SERVICE}/Upload", response_deserializer=transfer_pb2.UploadResponse.FromString
        )

    def close(self) -> None:
        """Close the channel; running calls end with CANCELLED."""
        if self._spent is not None:
            self._spent.close()
        self._channel.close()

    def manifest(self, blob: str, timeout_s: float, trace: str = "") -> transfer_pb2.GetManifestResponse:
        """``GetManifest``."""
        request = transfer_pb2.GetManifestRequest(blob=blob)
        return self._stub.GetManifest(request, timeout=timeout_s, metadata=self._metadata(trace))

    def download(
        self, blob: str, first_chunk: int, timeout_s: float, trace: str = "", chunks: Sequence[int] = ()
    ) -> ByteStream:
        """``Download``: serialised ``DownloadResponse`` messages, from ``first_chunk`` on, or only for ``chunks``."""
        request = transfer_pb2.DownloadRequest(blob=blob, first_chunk=first_chunk, chunks=chunks)
        call = self._download(request, timeout=timeout_s, metadata=self._metadata(trace))
        return cast("ByteStream", call)

    def upload(
        self, frames: Iterator[bytes], timeout_s: float, trace: str = ""
    ) -> grpc.Future[transfer_pb2.UploadResponse]:
        """``Upload`` of serialised ``UploadRequest`` messages; a thread of gRPC iterates over ``frames``."""
        return self._upload.future(frames, timeout=timeout_s, metadata=self._metadata(trace))

    def upload_status(
        self, key: transfer_pb2.UploadKey, timeout_s: float, trace: str = ""
    ) -> transfer_pb2.GetUploadStatusResponse:
        """``GetUploadStatus``."""
        request = transfer_pb2.GetUploadStatusRequest(key=key)
        return self._stub.GetUploadStatus(request, timeout=timeout_s, metadata=self._metadata(trace))

    def report(
        self, request: transfer_pb2.ReportRequest, timeout_s: float, trace: str = ""
    ) -> transfer_pb2.ReportResponse:
        """``Report``."""
        return self._stub.Report(request, timeout=timeout_s, metadata=self._metadata(trace))

    def _metadata(self, trace: str) -> tuple[tuple[str, str], ...]:
        return (*self.endpoint.metadata, ("traceparent", trace)) if trace else self.endpoint.metadata
