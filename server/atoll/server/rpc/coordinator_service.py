"""The coordinator's internal API, which it serves on a Unix socket to ingest workers."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import grpc.aio

from atoll.server.identity import DEFAULT_PROJECT, Role
from atoll.server.ingest.coordinator_api import Caller, Commit, CoordinatorApi, ReportReceipt, UploadGrant
from atoll.server.rpc.authentication import Context
from atoll.server.rpc.ingest_messages import (
    commit_from_proto,
    commit_to_proto,
    grant_from_proto,
    grant_to_proto,
    receipt_from_proto,
    receipt_to_proto,
    role_of,
)
from atoll.server.rpc.internal_calls import as_server_errors
from atoll.wire.v1 import ingest_pb2, participation_pb2
from atoll.wire.v1.ingest_pb2_grpc import CoordinatorServiceServicer, CoordinatorServiceStub

if TYPE_CHECKING:
    from atoll.wire.v1.ingest_pb2_grpc import CoordinatorServiceAsyncStub

IDENTITY_CACHE_S = 1.0
"""Seconds that a worker caches the holder of a certificate. Workers are told of revocations; if that fails, they still
ask again after this time."""
CALL_S = 30.0
"""Maximum seconds to wait for the coordinator's answer."""
_CACHED = 16_384


class CoordinatorService(CoordinatorServiceServicer):
    """Serves the coordinator to the workers."""

    def __init__(self, coordinator: CoordinatorApi) -> None:
        self._coordinator = coordinator

    async def Identify(self, request: ingest_pb2.IdentifyRequest, context: Context) -> ingest_pb2.IdentifyResponse:
        """See ``CoordinatorApi.identify``."""
        caller = await self._coordinator.identify(request.certificate_pem)
        return ingest_pb2.IdentifyResponse(role=caller.role.value, name=caller.name, project=caller.project)

    async def GrantUpload(
        self, request: ingest_pb2.GrantUploadRequest, context: Context
    ) -> ingest_pb2.GrantUploadResponse:
        """See ``CoordinatorApi.grant_upload``."""
        at = request.round
        grant = await self._coordinator.grant_upload(request.participant, at.run, at.round, at.attempt)
        return grant_to_proto(grant)

    async def GrantDownload(
        self, request: ingest_pb2.GrantDownloadRequest, context: Context
    ) -> ingest_pb2.GrantDownloadResponse:
        """See ``CoordinatorApi.grant_download``."""
        await self._coordinator.grant_download(Caller(role_of(request.role), request.name), request.blob)
        return ingest_pb2.GrantDownloadResponse()

    async def Commit(self, request: ingest_pb2.CommitRequest, context: Context) -> ingest_pb2.CommitResponse:
        """See ``CoordinatorApi.commit``."""
        receipt = await self._coordinator.commit(commit_from_proto(request))
        return ingest_pb2.CommitResponse(response=receipt_to_proto(receipt))


class RemoteCoordinator:
    """The coordinator's interface in a worker; caches identities for ``identity_s`` seconds."""

    def __init__(self, channel: grpc.aio.Channel, identity_s: float = IDENTITY_CACHE_S) -> None:
        self._identity_s = identity_s
        self._stub: CoordinatorServiceAsyncStub = CoordinatorServiceStub(channel)
        self._known: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()
        self._revocations = 0

    def forget(self) -> None:
        """Forget all identities after a revocation, and do not cache answers that are still pending."""
        self._revocations += 1
        self._known.clear()

    async def identify(self, certificate_pem: bytes) -> Caller:
        """See ``CoordinatorApi``; the answer is cached."""
        now = time.monotonic()
        at, caller = self._known.get(certificate_pem, (float("-inf"), None))
        if caller is not None and now - at < self._identity_s:
            return caller
        revocations = self._revocations
        async with as_server_errors("coordinator"):
            answer = await self._stub.Identify(
                ingest_pb2.IdentifyRequest(certificate_pem=certificate_pem), timeout=CALL_S
            )
        if revocations != self._revocations:
            return await self.identify(certificate_pem)
        caller = Caller(Role(answer.role), answer.name, project=answer.project or DEFAULT_PROJECT)
        self._known[certificate_pem] = (now, caller)
        self._known.move_to_end(certificate_pem)
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return caller

    async def grant_upload(self, participant: str, run: str, round_number: int, attempt: int) -> UploadGrant:
        """See ``CoordinatorApi``."""
        key = participation_pb2.RoundKey(run=run, round=round_number, attempt=attempt)
        async with as_server_errors("coordinator"):
            request = ingest_pb2.GrantUploadRequest(participant=participant, round=key)
            answer = await self._stub.GrantUpload(request, timeout=CALL_S)
        return grant_from_proto(answer)

    async def grant_download(self, caller: Caller, blob: str) -> None:
        """See ``CoordinatorApi``."""
        request = ingest_pb2.GrantDownloadRequest(role=caller.role.value, name=caller.name, blob=blob)
        async with as_server_errors("coordinator"):
            await self._stub.GrantDownload(request, timeout=CALL_S)

    async def commit(self, commit: Commit) -> ReportReceipt:
        """See ``CoordinatorApi``."""
        async with as_server_errors("coordinator"):
            answer = await self._stub.Commit(commit_to_proto(commit), timeout=CALL_S)
        return receipt_from_proto(answer.response)
