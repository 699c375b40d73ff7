"""Grants of uploads and downloads: who may send an update to a round, and who may read a blob."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from atoll.server.access.audit_log import OperatorDownloads
from atoll.server.access.certificates import CertificateBook
from atoll.server.access.role_checks import MAY_READ_MODELS, role_error
from atoll.server.errors import ForbiddenError, ServerError, TooLateError
from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller, Disposition, ReportReceipt, UploadGrant
from atoll.server.ingest.upload_quota import most_chunks
from atoll.server.rounds import Roster, RoundKey, RoundKind, wants
from atoll.server.runs.active_runs import ActiveRun, ActiveRuns
from atoll.server.runs.invitations import max_weight
from atoll.server.runs.reporting import member_of, no_longer_wanted
from atoll.server.runs.services import Services
from atoll.server.runs.submission import upload_owner
from atoll.server.stores import BlobMissingError, projects, reports, runs
from atoll.wire.encoding import payload_bytes

_LEAST_UPLOAD_BYTES = 16 << 20


class Grants:
    """Decides on uploads and downloads, for ``CoordinatorApi``.

    Args:
        services: limits, sessions and stores.
        certificates: knows revoked participants and operators' roles.
        active: the runs that have not ended.
        downloads: records which operators download models; None to record nothing.
        insecure: whether operators are not identified (``--insecure``).
    """

    def __init__(
        self,
        services: Services,
        certificates: CertificateBook,
        active: ActiveRuns,
        downloads: OperatorDownloads | None,
        *,
        insecure: bool,
    ) -> None:
        self._services = services
        self._certificates = certificates
        self._active = active
        self._downloads = downloads
        self._insecure = insecure

    async def upload(self, participant: str, run: str, round_number: int, attempt: int) -> UploadGrant:
        """See ``CoordinatorApi.grant_upload``."""
        self._certificates.check_standing(participant)
        key = RoundKey(round_number, attempt)
        standing, active = None, self._active.get(run)
        if active is None or not wants(active.driver.state, key, participant):  # without it there is no receipt
            standing = await self._standing_receipt(participant, run, key)
            active = self._active.get(run)
        if active is None:
            return await self._grant_ended(run, standing)
        state = active.driver.state
        member = member_of(state, key, participant)
        if standing is None and not wants(state, key, participant):
            raise no_longer_wanted(state, key, participant)
        train = state.round is None or state.round.key != key or state.round.kind is RoundKind.TRAIN
        # An ended round takes late updates only if the model is one fragment, so this is its fragment too.
        wanted = active.fragments.of_round(state.version if state.round is None else state.round.version)
        max_bytes = self._most_bytes(active, wanted.size) if train else 0
        return UploadGrant(
            elements=wanted.size,
            first=wanted.offset,
            max_abs=state.policy.max_abs,
            max_bytes=max_bytes,
            max_chunks=most_chunks(len(active.layout.tensors), max_bytes),
            max_weight=max_weight(state, member.declared_weight) if member is not None else 0,
            max_uploads=self._services.limits.uploads_per_round,
            receipt=standing,
        )

    async def download(self, caller: Caller, blob: str) -> None:
        """See ``CoordinatorApi``: operators may read models of their projects, participants the models of their rounds.

        An aggregator may read every blob that a member connected through it may read.
        """
        if caller.role is Role.OPERATOR:
            await self._allow_operator(caller, blob)
            return
        self._certificates.check_standing(caller.name)
        if self._services.share_models and await self._is_shared(caller, blob):
            return
        for active in self._active.all():
            live = active.driver.state.round
            if live is not None and active.driver.state.model == blob and self._has_member(live.roster, caller):
                return
        raise ForbiddenError(
            "blob.member",
            f"blob {blob[:16]!r} is not the model of a round that {caller.name} is a member of now",
            "wait for the next invitation",
        )

    async def _allow_operator(self, caller: Caller, blob: str) -> None:
        """An operator may read the models of the projects in which its role allows that.

        Raises:
            ForbiddenError: if no project allows it.
            BlobMissingError: if no such project has the blob.
        """
        rights = caller.rights or await self._certificates.rights(caller.name)
        everywhere = self._insecure or rights.everywhere in MAY_READ_MODELS
        may = {name: role.role in MAY_READ_MODELS and not role.organisation for name, role in rights.projects.items()}
        error: ServerError | None = None
        project = ""
        if not everywhere and not any(may.values()):
            error = role_error(caller.name, rights.everywhere, MAY_READ_MODELS, ())
        elif not everywhere or not all(may.values()):
            places = await self._places(blob, may)
            project = next((one for one in sorted(places) if may.get(one)), "")
            if not any(may.get(one, everywhere) for one in places) and (places or not everywhere):
                error = BlobMissingError(blob)
        if self._downloads is not None:
            if error is None:
                await self._downloads.check(caller.name, blob, project)
            else:
                await self._downloads.refused(caller.name, blob, error.detail.code)
        if error is not None:
            raise error

    async def _places(self, blob: str, among: Collection[str]) -> set[str]:
        """The projects with a run that has the blob, and those of ``among`` to which it was recently uploaded."""
        now, leases = self._services.clock(), self._services.leases
        named = await self._services.reader.run(projects.naming_blob, blob)
        return {*named, *(one for one in among if leases.holds(upload_owner(one), blob, now))}

    async def _is_shared(self, caller: Caller, blob: str) -> bool:
        """Whether the caller's project names the blob; on a server with one project every blob counts."""

        def work(connection: Connection) -> bool:
            own = projects.of_participants(connection, (caller.name,)).get(caller.name)
            return len(projects.listed(connection)) == 1 or own in projects.naming_blob(connection, blob)

        return await self._services.reader.run(work)

    def _has_member(self, roster: Roster, caller: Caller) -> bool:
        """Whether the caller, or a participant that is connected through it, is a member."""
        if caller.role is not Role.AGGREGATOR:
            return roster.get(caller.name) is not None
        return any(map(roster.get, self._services.sessions.through(caller.name)))

    def _most_bytes(self, active: ActiveRun, elements: int) -> int:
        """Maximum payload bytes of a member's uploads for one attempt at an update of ``elements`` elements."""
        needed = payload_bytes(active.spec.aggregation.wire_encoding, elements)
        return max(_LEAST_UPLOAD_BYTES, int(self._services.limits.upload_factor * needed))

    async def _grant_ended(self, run: str, standing: ReportReceipt | None) -> UploadGrant:
        """Return the receipt of an ended run's report, if there is one; an ended run grants no upload."""
        if standing is not None:
            return UploadGrant(elements=0, max_abs=0.0, max_bytes=0, max_weight=0, max_uploads=0, receipt=standing)
        ended = await self._services.reader.run(lambda connection: runs.get(connection, run))
        raise TooLateError("run.ended", f"run {run} has {ended.status}", "wait for the next invitation")

    async def _standing_receipt(self, participant: str, run: str, key: RoundKey) -> ReportReceipt | None:
        found = await self._services.reader.run(
            lambda connection: reports.get(connection, run, key.round, key.attempt, participant)
        )
        return None if found is None else ReportReceipt(Disposition(found.disposition), found.digest)
