"""All runs of a server; answers ingest nodes and participants."""

from __future__ import annotations

import asyncio
import logging

from atoll.server.access.audit_log import OperatorDownloads
from atoll.server.access.certificates import CertificateBook
from atoll.server.config.storage_settings import StorageSettings
from atoll.server.errors import (
    ConflictError,
    ServerError,
    UnavailableError,
)
from atoll.server.identity import DEFAULT_PROJECT, RevokedError, Role
from atoll.server.ingest.coordinator_api import Caller, Commit, Disposition, ReportReceipt, UploadGrant
from atoll.server.jobs import to_run_policy
from atoll.server.rounds import (
    Accepted,
    CancelRequested,
    Effect,
    Event,
    PauseRequested,
    Rejected,
    ResumeRequested,
    RoundKey,
    RunStatus,
    initial,
    wants,
)
from atoll.server.runs.active_runs import ActiveRun, ActiveRuns
from atoll.server.runs.check_in_records import CheckInRecords
from atoll.server.runs.extending import Extended, Extender, not_ended
from atoll.server.runs.grants import Grants
from atoll.server.runs.invitations import stop_message
from atoll.server.runs.janitor import Janitor
from atoll.server.runs.journal import SqlJournal
from atoll.server.runs.online import count_online
from atoll.server.runs.performer import RunPerformer
from atoll.server.runs.private.budgets import Budgets
from atoll.server.runs.reporting import (
    ReportRecorder,
    answer_to,
    reply_event,
    reported_event,
    without_figures,
)
from atoll.server.runs.required import warnings_of_choice
from atoll.server.runs.run_privacy import Promise
from atoll.server.runs.run_starter import RunStarter
from atoll.server.runs.services import Services
from atoll.server.runs.session import Introduction, Membership, Session
from atoll.server.runs.submission import Planned, Submitted, examined, planned_bytes
from atoll.server.stores import participants, runs
from atoll.text.printable import printable
from atoll.wire.layout import Layout
from atoll.wire.v1 import participation_pb2

log = logging.getLogger(__name__)

_ACTIVE = tuple(status.value for status in RunStatus if not status.ended)
MAX_REASON_CHARS = 1024


class Coordinator:
    """Starts, resumes and finds runs; routes what participants send to them."""

    def __init__(
        self,
        services: Services,
        certificates: CertificateBook,
        storage: StorageSettings,
        *,
        insecure: bool,
        restored_at: float = 0.0,
        downloads: OperatorDownloads | None = None,
        renewal_grace_s: float = 0.0,
    ) -> None:
        self._insecure = insecure
        self._services = services
        self._certificates = certificates
        self._active = ActiveRuns(services, self._note_end)
        self._grants = Grants(services, certificates, self._active, downloads, insecure=insecure)
        self._budgets = Budgets(services)
        self._records = CheckInRecords(services)
        self._journal = SqlJournal(
            services.writer, services.reader, keep_events=storage.keep_events, learns=services.learns
        )
        self._starter = RunStarter(services, self._active, self._journal, self._budgets, restored_at)
        self._resuming: set[str] = set()
        self.janitor = Janitor(
            services, storage, lambda: {*self._active.ids(), *self._resuming}, renewal_grace_s=renewal_grace_s
        )
        self._extender = Extender(services, self._journal, self.janitor, storage)
        self._open = False
        self._leaving = False
        services.sessions.listen(connected=self._connected, disconnected=self._disconnected)
        certificates.listen(self._expel)

    async def start(self) -> None:
        """Resume every run that had not ended, within its round, and remove leftovers of ended ones.

        Raises:
            CorruptDataError: if a run's log or row is damaged; then no run is changed and none begins.
        """
        found = await self._services.reader.run(lambda connection: runs.with_status(connection, _ACTIVE))
        self._resuming = {run.id for run in found}
        try:
            await self.janitor.tidy(fresh_s=0.0)
        except (ServerError, OSError) as error:
            log.warning("leftovers were not removed; the next sweep tries again: %s", error)
        for run in found:
            await self._starter.resume(run)
        self._resuming = set()
        self._open = True
        self.janitor.start()

    @property
    def leaving(self) -> bool:
        """Whether the server is about to stop."""
        return self._leaving

    def leave(self) -> None:
        """Prepare to stop: participants that disconnect no longer count as missing, and watchers wake up."""
        self._leaving = True
        for active in self._active.all():
            active.driver.changed.set()

    async def settled(self) -> None:
        """Wait until no running round is between last report and release: a restart there would repeat a sum."""
        await self._active.settled()

    async def stop(self) -> None:
        """Stop taking events; every run stays as its log has it."""
        self._records.stop()
        await self._extender.stop()
        await self.janitor.stop()
        for active in self._active.all():
            await active.driver.stop()

    def in_work(self) -> list[ActiveRun]:
        """All runs that have not ended."""
        return self._active.all()

    def run_names(self) -> list[str]:
        """Ids of the runs that have not ended.

        Raises:
            UnavailableError: until all runs are resumed.
        """
        self._check_open()
        return self._active.ids()

    def active(self, run_id: str) -> ActiveRun | None:
        """A run that has not ended; None for others."""
        return self._active.get(run_id)

    async def submit(
        self,
        *,
        job_toml: bytes,
        file_name: str,
        layout: Layout,
        initial_blob: str,
        operator: str,
        project: str = DEFAULT_PROJECT,
    ) -> Submitted:
        """Begin a run; returns when it is durable. Raises what ``submission.examined`` raises."""
        services = self._services
        found = await examined(
            services,
            job_toml=job_toml,
            file_name=file_name,
            layout=layout,
            initial_blob=initial_blob,
            operator=operator,
            project=project,
            at_work=[
                Planned(active.driver.run, planned_bytes(services, active.spec, active.layout))
                for active in self._active.all()
                if active.project == project
            ],
        )
        await found.store(services)
        run = found.run
        state = initial(run.id, to_run_policy(found.spec), run.initial_model)
        await self._starter.begin(run, found.spec, found.layout, state, 0, promise=found.promise).performer.start_run()
        return Submitted(run.id, (*found.warnings, *warnings_of_choice(found.spec, len(services.sessions.of(project)))))

    async def pause(self, run_id: str) -> None:
        """Pause a run after its current round.

        Raises:
            NotFoundError, ConflictError: if the run is unknown or has ended.
        """
        await self._order(run_id, PauseRequested())

    async def resume(self, run_id: str) -> None:
        """Resume a paused run.

        Raises:
            NotFoundError, ConflictError: if the run is unknown or has ended.
            BudgetSpentError: if its next release would cost more privacy than is left; the run stays paused.
            StoreDamagedError: if its population's ledger was altered on disk; the run stays paused.
        """
        active = self._active.get(run_id)
        if active is None or active.driver.state.status is not RunStatus.PAUSED:
            await self._order(run_id, ResumeRequested())
            return
        self._budgets.unblock(run_id)
        await active.privacy.reset_shortfall()
        await active.privacy.reserve(afresh=True)
        try:
            await self._order(run_id, ResumeRequested())
        except ServerError:
            self._budgets.release(run_id)
            raise

    async def cancel(self, run_id: str, reason: str) -> None:
        """Cancel a run now. Raises what ``pause`` raises."""
        await self._order(run_id, CancelRequested(printable(reason[:MAX_REASON_CHARS]) or "cancelled by the operator"))

    async def extend(self, run_id: str, rounds: int) -> None:
        """Continue a finished or cancelled run from its newest model for ``rounds`` train rounds.

        Raises:
            UnavailableError: if the server is starting or stopping.
            ServerError: what ``Extender.extend`` raises.
        """
        self._check_open()
        if self._leaving:
            raise UnavailableError("server.stopping", "the server is stopping", "try again", retry_after_s=1.0)
        active = self._active.get(run_id)
        if active is not None:
            raise not_ended(run_id, active.driver.state.status)
        await self._extender.extend(run_id, rounds, self._go_on)

    def _go_on(self, extended: Extended) -> None:
        run, seq = extended.run, extended.entry.next_seq
        self._starter.begin(run, extended.spec, extended.layout, extended.state, seq, promise=Promise())

    async def revoke(self, participant: str, reason: str) -> participants.Participant:
        """Revoke a participant at once; its open streams end.

        Raises:
            RecordMissingError: if there is no such participant.
        """
        row = await self._certificates.revoke(participant, printable(reason[:MAX_REASON_CHARS]))
        await self._services.nodes.end_calls(
            Caller(row.role, participant), RevokedError.of(participant, row.revoked_reason)
        )
        return row

    # Calls of ingest nodes (``ingest.coordinator_api.CoordinatorApi``).

    async def identify(self, certificate_pem: bytes) -> Caller:
        """See ``CoordinatorApi``."""
        self._check_open()
        return await self._certificates.identify(certificate_pem)

    async def grant_upload(self, participant: str, run: str, round_number: int, attempt: int) -> UploadGrant:
        """See ``CoordinatorApi``."""
        self._check_open()
        return await self._grants.upload(participant, run, round_number, attempt)

    async def grant_download(self, caller: Caller, blob: str) -> None:
        """See ``CoordinatorApi``."""
        self._check_open()
        await self._grants.download(caller, blob)

    async def commit(self, commit: Commit) -> ReportReceipt:
        """See ``CoordinatorApi``."""
        posted = self.post_report(commit)
        effects = () if posted is None else await posted
        if posted is None or commit.rejection:
            return ReportReceipt(Disposition.DROPPED, commit.report.digest)
        return answer_to(effects, commit.participant, commit.report.digest)

    def post_report(self, commit: Commit) -> asyncio.Future[tuple[Effect, ...]] | None:
        """Post a report to its run; the future is ``RunDriver.post``'s. None if no such run takes events.

        Raises:
            InvalidRequestError: if the weight is out of bounds.
            UnavailableError: if the coordinator is not open, or a late report is not late.
        """
        self._check_open()
        self._certificates.check_standing(commit.participant)
        at = commit.report.round
        key, active = RoundKey(at.round, at.attempt), self._active.get(at.run)
        if active is None:
            return None
        if commit.rejection:
            return active.driver.post(Rejected(key, commit.participant, commit.rejection, unreported=True))
        if active.spec.privacy is not None:
            commit = without_figures(commit)
        event = reported_event(commit, key)
        if commit.late and wants(active.driver.state, key, commit.participant):
            raise UnavailableError("round.moved", f"round {key} takes reports", "report again", retry_after_s=0.1)
        recorder = ReportRecorder(active.driver.run, commit, event.metrics, self._services.clock())
        return active.driver.post(event, also=recorder)

    # Messages of participants (``rpc.check_in_api.CheckInApi``).

    async def project_of(self, participant: str) -> str:
        """See ``CheckInApi``."""
        return await self._records.project_of(participant)

    async def introduced(self, participant: str, introduction: Introduction) -> Membership:
        """See ``CheckInApi``: store what the participant declares."""
        known = self._records.known(participant, introduction)
        if known is None:
            if self._insecure:
                await self._certificates.adopt_insecure(participant)
            known = await self._records.record(participant, introduction)
        return Membership(known.organisation, known.project)

    async def replied(self, participant: str, reply: participation_pb2.TaskReply) -> None:
        """A participant accepted, declined or failed; replies for rounds that are over are ignored."""
        posted = self.post_reply(participant, reply)
        if posted is None:
            return
        try:
            await posted
        except ConflictError as error:
            log.debug("reply of %s not taken: %s", participant, error)

    def post_reply(
        self, participant: str, reply: participation_pb2.TaskReply
    ) -> asyncio.Future[tuple[Effect, ...]] | None:
        """Post a reply to its run; the future is ``RunDriver.post``'s. None if no such run takes events.

        Raises:
            InvalidRequestError: for an unknown verdict.
        """
        active = self._active.get(reply.key.run)
        if active is None:
            return None
        event = reply_event(participant, reply)
        # No caller waits for an acceptance, so it shares the transaction of the next event.
        return active.driver.post(event, patient=isinstance(event, Accepted))

    def expects(self, participant: str) -> bool:
        """See ``CheckInApi``."""
        return self._starter.has_drawn(participant) or bool(self._active.busy("", (participant,)))

    def certificate_remaining_s(self, participant: str) -> float:
        """See ``CheckInApi``."""
        return self._certificates.remaining_s(participant)

    def _note_end(self, run_id: str, performer: RunPerformer) -> None:
        self._extender.note_end(run_id, performer)

    async def _order(self, run_id: str, event: Event) -> None:
        active = self._active.get(run_id)
        if active is None:
            run = await self._services.reader.run(lambda connection: runs.get(connection, run_id))
            raise ConflictError("run.ended", f"run {run_id} has {run.status} already", "extend it, or submit a new run")
        await active.driver.post(event)

    def _check_open(self) -> None:
        """Refuse calls until all runs are resumed: ingest workers may call earlier."""
        if not self._open:
            raise UnavailableError("server.starting", "the server is starting", "try again", retry_after_s=1.0)

    def _expel(self, caller: Caller, _: ServerError) -> None:
        """Disconnect a revoked participant, so that it is no longer drawn; its stream ends with its calls."""
        session = self._services.sessions.get(caller.name) if caller.role is Role.PARTICIPANT else None
        if session is not None:
            session.close()
            self._services.sessions.disconnect(session)

    def _connected(self, session: Session) -> None:
        for active in self._active.all():
            active.performer.members.connected(session)
        for run, number, attempt in sorted(session.introduction.resuming):
            if self._active.get(run) is None:
                session.send(stop_message(run, RoundKey(number, attempt), "the run has ended"))

    def _disconnected(self, session: Session) -> None:
        count_online(self._services, [session])
        for active in () if self._leaving else self._active.all():
            active.performer.members.lost(session.participant, session.away_s)
