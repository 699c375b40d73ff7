"""The coordinator's API for one gateway: it answers only for participants that the gateway may act for."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from atoll.server.errors import ForbiddenError, InvalidRequestError
from atoll.server.gateway.host.bindings import Bindings
from atoll.server.gateway.host.driving import Driving
from atoll.server.gateway.host.gateways import Gateway
from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller, Commit, ReportReceipt, UploadGrant
from atoll.server.rpc.authentication import Authenticator, Context
from atoll.server.rpc.coordinator_service import CoordinatorService
from atoll.server.rpc.introductions import MAX_REASON_CHARS
from atoll.text.printable import printable
from atoll.wire.v1 import ingest_pb2
from atoll.wire.v1.ingest_pb2_grpc import CoordinatorServiceServicer

_MOST_BYTES = 2**63 - 1
_HEX = re.compile("[0-9a-f]*")


class BoundCoordinator:
    """A ``CoordinatorApi`` for one gateway.

    An aggregator acts for the participants that are bound to it; each method also raises what ``Bindings.check``
    raises. A standby acts for every caller.
    """

    def __init__(self, coordinator: Driving, bindings: Bindings, gateway: Gateway) -> None:
        self._coordinator = coordinator
        self._bindings = bindings
        self._gateway = gateway

    async def identify(self, certificate_pem: bytes) -> Caller:
        """See ``CoordinatorApi``; states a participant's project.

        Raises:
            ForbiddenError: at an aggregator, for an operator's or another gateway's certificate.
        """
        caller = await self._coordinator.identify(certificate_pem)
        if caller.role is not Role.PARTICIPANT:
            if self._gateway.is_server:
                return caller
            raise ForbiddenError(
                "gateway.role",
                f"{caller.name} is not a participant; an aggregator serves participants only",
                "connect to the server itself",
            )
        await self._check(caller.name)
        return replace(caller, project=await self._coordinator.project_of(caller.name))

    async def grant_upload(self, participant: str, run: str, round_number: int, attempt: int) -> UploadGrant:
        """See ``CoordinatorApi``."""
        await self._check(participant)
        return await self._coordinator.grant_upload(participant, run, round_number, attempt)

    async def grant_download(self, caller: Caller, blob: str) -> None:
        """See ``CoordinatorApi``; the role that an aggregator states is not trusted."""
        await self._check(caller.name)
        believed = caller if self._gateway.is_server else Caller(Role.PARTICIPANT, caller.name)
        await self._coordinator.grant_download(believed, blob)

    async def commit(self, commit: Commit) -> ReportReceipt:
        """See ``CoordinatorApi``; the update is recorded as received by this gateway, even if it names another.

        Raises:
            InvalidRequestError: for figures or names that no correct node sends.
        """
        await self._check(commit.participant)
        _check_figures(commit)
        reason = printable(commit.rejection[:MAX_REASON_CHARS])
        return await self._coordinator.commit(replace(commit, node=self._gateway.node, rejection=reason))

    async def _check(self, participant: str) -> None:
        if not self._gateway.is_server:
            await self._bindings.check(self._gateway.id, participant)


def _check_figures(commit: Commit) -> None:
    """Check the values that a server's own node makes or checks itself, but another node could get wrong."""
    if not (math.isfinite(commit.norm) and commit.norm >= 0 and math.isfinite(commit.upload_at)):
        raise InvalidRequestError("gateway.commit", f"norm {commit.norm}, upload_at {commit.upload_at}")
    if commit.payload_bytes > _MOST_BYTES:
        raise InvalidRequestError("gateway.commit", f"{commit.payload_bytes} payload bytes: at most {_MOST_BYTES}")
    said = commit.report
    for name, text, digits in (("digest", said.digest, 64), ("upload_id", said.upload_id, 32)):
        if text and (len(text) != digits or not _HEX.fullmatch(text)):
            raise InvalidRequestError(
                "gateway.commit", f"{name} {text[:80]!r}: expected {digits} lower-case hex digits"
            )


class GatewayCoordinatorService(CoordinatorServiceServicer):
    """``CoordinatorService`` on the main port, for gateways."""

    def __init__(self, coordinator: Driving, bindings: Bindings, authenticator: Authenticator) -> None:
        self._coordinator = coordinator
        self._bindings = bindings
        self._authenticator = authenticator

    async def _for(self, context: Context) -> CoordinatorService:
        gateway = Gateway.of(await self._authenticator.gateway(context))
        return CoordinatorService(BoundCoordinator(self._coordinator, self._bindings, gateway))

    async def Identify(self, request: ingest_pb2.IdentifyRequest, context: Context) -> ingest_pb2.IdentifyResponse:
        """See ``CoordinatorApi.identify``."""
        return await (await self._for(context)).Identify(request, context)

    async def GrantUpload(
        self, request: ingest_pb2.GrantUploadRequest, context: Context
    ) -> ingest_pb2.GrantUploadResponse:
        """See ``CoordinatorApi.grant_upload``."""
        return await (await self._for(context)).GrantUpload(request, context)

    async def GrantDownload(
        self, request: ingest_pb2.GrantDownloadRequest, context: Context
    ) -> ingest_pb2.GrantDownloadResponse:
        """See ``CoordinatorApi.grant_download``."""
        return await (await self._for(context)).GrantDownload(request, context)

    async def Commit(self, request: ingest_pb2.CommitRequest, context: Context) -> ingest_pb2.CommitResponse:
        """See ``CoordinatorApi.commit``."""
        return await (await self._for(context)).Commit(request, context)
