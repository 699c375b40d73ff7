"""The coordinator's API for the gateway's own services: calls the server over the link."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from atoll.server.errors import ForbiddenError, UnauthenticatedError
from atoll.server.gateway.site.link import Link
from atoll.server.gateway.site.models import Models
from atoll.server.gateway.site.relay import Certified, Relay
from atoll.server.identity import Peer, Role
from atoll.server.ingest.coordinator_api import Caller, Commit, ReportReceipt, UploadGrant
from atoll.server.ingest.node import FoldItem
from atoll.server.rpc.coordinator_service import RemoteCoordinator
from atoll.server.rpc.internal_calls import closing_is_unavailability

T = TypeVar("T")
_CACHED = 65_536


class Certificates:
    """The newest certificate with which each participant has connected."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Certified] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def note(self, participant: str, pem: bytes, project: str) -> None:
        """Note the certificate with which a participant of a project has connected."""
        if pem in self._seen:
            return
        peer, known = Peer.from_pem(pem), self._known.get(participant)
        if known is None or known.not_after <= peer.not_after:
            self._known[participant] = Certified(pem, peer.not_after, project)
        self._seen[pem] = None
        for kept in (self._known, self._seen):
            while len(kept) > _CACHED:
                kept.popitem(last=False)

    def of(self, participant: str) -> Certified:
        """The certificate of a participant.

        Raises:
            UnauthenticatedError: if it has presented none.
        """
        found = self._known.get(participant)
        if found is None:
            raise UnauthenticatedError("gateway.certificate", f"no certificate of {participant}", "connect again")
        return found


class Places:
    """The gateway's node, in this process or a worker, that received each update."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[tuple[str, int, int, str], str] = OrderedDict()

    def note(self, commit: Commit) -> None:
        """Note that an update has arrived."""
        at = commit.report.round
        self._nodes[at.run, at.round, at.attempt, commit.participant] = commit.node
        if len(self._nodes) > _CACHED:
            self._nodes.popitem(last=False)

    def of(self, item: FoldItem) -> str:
        """The node that received an update; empty if unknown, so that any node may fold it."""
        return self._nodes.get((item.run, item.round, item.attempt, item.participant), "")


class SiteCoordinator:
    """A ``CoordinatorApi`` over the link; each method also raises what ``Link.line`` raises.

    Args:
        link: to the server.
        certificates: the participants' certificates.
        relay: the participants' sessions.
        models: fetches models; None if they are accessible in a bucket.

    Attributes:
        places: the nodes of received updates.
    """

    def __init__(self, link: Link, certificates: Certificates, relay: Relay, models: Models | None) -> None:
        self._link = link
        self._certificates = certificates
        self._relay = relay
        self._models = models
        self.places = Places()

    async def identify(self, certificate_pem: bytes) -> Caller:
        """See ``CoordinatorApi``."""
        caller = await self._asked(lambda server: server.identify(certificate_pem))
        if caller.role is Role.PARTICIPANT:
            self._certificates.note(caller.name, certificate_pem, caller.project)
        return caller

    async def grant_upload(self, participant: str, run: str, round_number: int, attempt: int) -> UploadGrant:
        """See ``CoordinatorApi``."""
        return await self._asked(lambda server: server.grant_upload(participant, run, round_number, attempt))

    async def grant_download(self, caller: Caller, blob: str) -> None:
        """See ``CoordinatorApi``; returns once the blob is available here."""
        await self._asked(lambda server: server.grant_download(caller, blob))
        models = self._models
        if models is not None:
            await self._asked(lambda _: models.ensure(blob))

    async def commit(self, commit: Commit) -> ReportReceipt:
        """See ``CoordinatorApi``."""
        self.places.note(commit)  # the order to fold it may arrive before the answer
        receipt = await self._asked(lambda server: server.commit(commit))
        at = commit.report.round
        self._relay.reported(commit.participant, (at.run, at.round, at.attempt))
        return receipt

    async def _asked(self, call: Callable[[RemoteCoordinator], Awaitable[T]]) -> T:
        """Call the server on behalf of a participant.

        Raises:
            UnavailableError: also if the server refuses this gateway itself rather than the participant, or if the
                connection ends before the answer.
            ServerError: the server's error.
        """
        try:
            with closing_is_unavailability("server"):
                return await call(self._link.line().coordinator)
        except (UnauthenticatedError, ForbiddenError) as error:
            if await self._link.stands():
                raise
            raise self._link.lost() from error
