"""The scripted server for a client under test: real sockets, TLS, and injected faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from atoll.wire.chunks import header_from_proto, update_digest
from atoll.wire.digest import chunk_digest
from atoll.wire.encoding import decode
from atoll.wire.status import ErrorDetail
from atoll.wire.v1 import participation_pb2 as part
from atoll.wire.v1 import transfer_pb2
from tests.client.harness import refuse
from tests.client.tls import SecureFederation, common_name

if TYPE_CHECKING:
    from tests.client.harness import Context

MODEL = {"weight": np.arange(6000, dtype=np.float32).reshape(200, 30), "bias": np.zeros(30, np.float32)}


class BrokenContractError(AssertionError):
    """The client broke the contract."""


def expect(condition: object, problem: str) -> None:
    """Raise ``BrokenContractError`` unless the condition holds."""
    if not condition:
        raise BrokenContractError(problem)


@dataclass(frozen=True)
class Call:
    """A call of Report: when it came (loop seconds) and what was in it."""

    at: float
    request: transfer_pb2.ReportRequest


@dataclass
class Seen:
    """The client's actions since the scenario began."""

    reports: list[Call] = field(default_factory=list)
    status_calls: int = 0
    uploads_begun: asyncio.Event = field(default_factory=asyncio.Event)
    refused: asyncio.Event = field(default_factory=asyncio.Event)


class ConformanceServer(SecureFederation):
    """The server of the client's own tests; also counts calls, and refuses reports on request.

    Attributes:
        wait_s: the longest wait for anything that the client has to do.
        refusals: status and detail of the next calls of Report, one each.
        streams: under which name each check-in stream came, by its certificate.
        barred: check-in streams that were refused.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(MODEL)
        self.wait_s = wait_s
        self.refusals: list[tuple[grpc.StatusCode, ErrorDetail]] = []
        self.seen = Seen()
        self.streams: list[str] = []
        self.barred = 0
        self._rounds = 0

    def begin(self) -> None:
        """Reset the state of an earlier scenario."""
        self.seen, self.refusals = Seen(), []
        for queue in (self.hellos, self.replies, self.reports):
            while not queue.empty():
                queue.get_nowait()
        self.download_starts.clear()
        self.upload_streams.clear()

    def next_round(self, **fields: Any) -> part.Participate:
        """An invitation to the next round of the run; every round has a model of its own."""
        self._rounds += 1
        self.set_model({name: array + np.float32(self._rounds) for name, array in MODEL.items()})
        return self.participate(self._rounds, **fields)

    def send(self, task: part.Participate) -> None:
        """Push an invitation."""
        self.push(part.CheckInResponse(participate=task))

    async def said(self, verdict: part.TaskReply.Verdict.ValueType, task: part.Participate) -> part.TaskReply:
        """The client's next reply, which must be this one about this task."""
        reply: part.TaskReply = await self._soon(self.replies.get(), "no reply to the invitation came")
        wanted = part.TaskReply.Verdict.Name(verdict)
        found = part.TaskReply.Verdict.Name(reply.verdict)
        expect(reply.key == task.key, f"a reply about {_key(reply.key)}, expected one about {_key(task.key)}")
        expect(reply.verdict == verdict, f"the reply is {found} ({reply.reason}), expected {wanted}")
        return reply

    async def greeted(self) -> part.Hello:
        """The Hello of the client's next check-in stream."""
        hello: part.Hello = await self._soon(self.hellos.get(), "the client did not check in")
        return hello

    async def counted(self, task: part.Participate) -> transfer_pb2.ReportRequest:
        """The report of a task, checked to the last element; the exercise is to add 1 to every weight."""
        report: transfer_pb2.ReportRequest = await self._soon(self.reports.get(), "no report came")
        expect(report.round == task.key, f"a report for {_key(report.round)}, expected {_key(task.key)}")
        expect(1 <= report.weight <= task.max_weight, f"weight {report.weight}: allowed are 1 to {task.max_weight}")
        expect(len(report.upload_id) == 32, f"upload_id {report.upload_id!r}: 16 bytes in hexadecimal")
        if not report.update:
            upload = self.uploads[report.upload_id]
            values = upload.flat(self.layout.size)
            headers = list(upload.headers.values())
        else:
            inline = transfer_pb2.UploadRequest.FromString(report.update)
            expect(inline.key.round == task.key, "the update in the report names another round")
            expect(inline.key.upload_id == report.upload_id, "the update in the report names another upload")
            headers = [header_from_proto(inline.chunk)]
            expect(chunk_digest(inline.payload) == headers[0].digest, "the chunk does not match its digest")
            values = decode(inline.payload, headers[0].encoding, headers[0].range.size).astype(np.float64)
        expect(report.digest == update_digest(headers), "the digest is not that of the update's chunks")
        wanted = {int(task.encoding)}
        expect({int(header.encoding) for header in headers} == wanted, f"expected encoding {task.encoding}")
        expect(np.array_equal(values, np.ones_like(values)), "the update is not local - global = 1 everywhere")
        return report

    async def trains(self, **fields: Any) -> transfer_pb2.ReportRequest:
        """Play a whole ordinary round."""
        task = self.next_round(**fields)
        self.send(task)
        await self.said(part.TaskReply.VERDICT_ACCEPTED, task)
        return await self.counted(task)

    async def stays_silent(self, seconds: float, calls: int) -> None:
        """Check that the client makes no further Report for a while."""
        await asyncio.sleep(seconds)
        expect(len(self.seen.reports) == calls, f"{len(self.seen.reports)} reports came, expected {calls}")

    async def until(self, event: asyncio.Event, otherwise: str) -> None:
        """Wait for an event; ``otherwise`` is the problem if it does not happen."""
        await self._soon(event.wait(), otherwise)

    async def _soon(self, coming: Any, otherwise: str) -> Any:
        try:
            async with asyncio.timeout(self.wait_s):
                return await coming
        except TimeoutError:
            raise BrokenContractError(f"{otherwise} within {self.wait_s:g} s") from None

    # -- what is counted on the way -----------------------------------------------------------------------------------

    async def CheckIn(  # noqa: N802
        self, request_iterator: Any, context: Context
    ) -> AsyncIterator[part.CheckInResponse]:
        self.streams.append(common_name(context))
        if self.faults.bar is not None:
            await anext(request_iterator)  # refused while it is written, the cause may get lost in gRPC
            self.barred += 1
            self.seen.refused.set()
        async for message in super().CheckIn(request_iterator, context):
            yield message

    async def Report(  # noqa: N802
        self, request: transfer_pb2.ReportRequest, context: Context
    ) -> transfer_pb2.ReportResponse:
        copy = transfer_pb2.ReportRequest()
        copy.CopyFrom(request)
        self.seen.reports.append(Call(asyncio.get_running_loop().time(), copy))
        if self.refusals:
            self.seen.refused.set()
            await refuse(context, *self.refusals.pop(0))
        return await super().Report(request, context)

    async def GetUploadStatus(  # noqa: N802
        self, request: transfer_pb2.GetUploadStatusRequest, context: Context
    ) -> transfer_pb2.GetUploadStatusResponse:
        self.seen.status_calls += 1
        return await super().GetUploadStatus(request, context)

    async def Upload(self, request_iterator: Any, context: Context) -> transfer_pb2.UploadResponse:  # noqa: N802
        self.seen.uploads_begun.set()
        return await super().Upload(request_iterator, context)


def _key(key: part.RoundKey) -> str:
    return f"round {key.round}.{key.attempt} of {key.run!r}"
