"""The session of rank 0 in a thread: the check-in stream, and the exchange of rounds with the training thread.

The client SDK's session does the same as for an edge client: identity, reconnects, renewal, the participant's policy.
Only the work on an invitation differs: instead of calling ``fit`` it passes the round to the training thread, waits for
what all ranks have sent, and reports.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from atoll.client import Participant
from atoll.client.errors import ClientError, RefusedError, text_for_server
from atoll.client.events import Reported, Trained
from atoll.client.silo import INCOMPLETE, Abandoned, Work, disposition_of, round_key_message
from atoll.datacenter.elastic.ending import status_of
from atoll.datacenter.elastic.exits import Exit
from atoll.datacenter.errors import FederationError
from atoll.datacenter.federation.journal import Journal
from atoll.datacenter.federation.residuals import EXACT
from atoll.wire.chunks import ChunkHeader, update_digest
from atoll.wire.v1 import transfer_pb2

if TYPE_CHECKING:
    from atoll.client import Task
    from atoll.client.silo import Invitation, MakeWork, Session, Summary
    from atoll.datacenter.federation.memory_check import MemoryCheck
    from atoll.datacenter.federation.spending import Spending

MAX_REPAIRS = 3
FAILED = "failed"


@dataclass(frozen=True)
class Delivery:
    """Totals of what all ranks have sent.

    Attributes:
        headers: headers of all chunks of all ranks.
        weight: weight of the update.
        metrics: metrics of the inner steps.
        fetched_bytes: bytes fetched by all ranks before the steps; the same in each delivery of a round.
        seconds: seconds of download, training and upload.
        partial: whether fewer steps were made than requested.
    """

    headers: Sequence[ChunkHeader]
    weight: int
    metrics: Mapping[str, float]
    fetched_bytes: int
    seconds: tuple[float, float, float]
    partial: bool


@dataclass(frozen=True)
class Handover:
    """A round that the session's thread passes to the training thread, and its results.

    Attributes:
        invitation: invitation of the server.
        upload_id: id of the upload of all ranks.
        address: address of transfers.
        chunk_bytes: chunk size of the upload.
        delivered: set by the training thread; an exception if the round cannot be finished.
        counted: id of the update whose rounding errors this one includes; empty: none.
        answers: outcome of the report: ``counted``, …, or ``incomplete``: the ranks must send missing chunks again.
    """

    invitation: Invitation
    upload_id: str
    address: str
    chunk_bytes: int
    counted: str = ""
    delivered: queue.Queue[Delivery | Exception] = field(default_factory=queue.Queue)
    answers: queue.Queue[str | Exception] = field(default_factory=queue.Queue)

    def answer(self) -> str:
        """Wait, in the training thread, for the outcome of the report; ``failed`` if there was no answer."""
        found = self.answers.get()
        return FAILED if isinstance(found, Exception) else found


class SiloParticipant(Participant):
    """The participant that a session needs; ``fit`` is never called, see ``SiloWork``."""

    def __init__(
        self, examples: int, spending: Spending | None = None, memory_check: MemoryCheck | None = None
    ) -> None:
        self.examples, self._spending, self._memory_check = examples, spending, memory_check

    def objection(self, task: Task) -> str | None:
        """See ``Participant``: objects to frozen tensors, a model without room, and steps beyond a private limit."""
        if self._memory_check is not None and (reason := self._memory_check.objection()) is not None:
            return reason
        if task.frozen:
            return f"a silo trains all tensors of its job; the run freezes {', '.join(task.frozen)[:200]}"
        return None if self._spending is None else self._spending.objection(task)


@dataclass(frozen=True)
class SiloWork(Work):
    """An invitation carried out by all ranks. Raises like ``Work``."""

    rounds: queue.Queue[Handover | None] = field(kw_only=True)
    journal: Journal = field(kw_only=True)

    def perform_steps(self) -> Reported:
        """Hand the round to the training thread, wait for what all ranks have sent, and report it."""
        task = self.invitation.task
        self.protection.charge(task)
        if (reported := self._settled()) is not None:
            return reported
        address, chunk_bytes = self.transfers.calls.endpoint.address, self.transfers.chunk_bytes
        counted = self.journal.errors_for(task.key)
        handover = Handover(self.invitation, secrets.token_hex(16), address, chunk_bytes, counted)
        self.rounds.put(handover)
        try:
            reported = self._until_counted(handover)
        except Exception as error:
            handover.answers.put(error)
            raise
        handover.answers.put(reported.disposition)
        return reported

    def _settled(self) -> Reported | None:
        """Ask about an update in doubt; return its report if it belongs to this round, which is then done."""
        found = self.journal.settle(self.transfers)
        if found is None:
            return None
        (report, answer), task = found, self.invitation.task
        if report.round != round_key_message(task.key):
            return None
        return Reported(task.key, disposition_of(answer), int(report.weight))

    def _until_counted(self, handover: Handover) -> Reported:
        for attempt in range(MAX_REPAIRS + 1):
            delivery = self._delivered(handover)
            if not attempt:
                self.usage.add(transferred_bytes=delivery.fetched_bytes)
            answer = self._reported(handover, delivery)
            if answer is not None:
                return Reported(self.invitation.task.key, disposition_of(answer), delivery.weight)
        raise RefusedError("the server has repeatedly lost part of the update")

    def _delivered(self, handover: Handover) -> Delivery:
        control = self.invitation.task.control
        with control.on_abandon(lambda: handover.delivered.put(Abandoned(control.reason))):
            outcome = handover.delivered.get()
        self.raise_if_abandoned()
        if isinstance(outcome, Exception):
            raise outcome
        self.observer(Trained(self.invitation.task.key, outcome.weight, outcome.seconds[1], dict(outcome.metrics)))
        return outcome

    def _reported(self, handover: Handover, delivery: Delivery) -> transfer_pb2.ReportResponse | None:
        """Return the server's answer; None if it lacks chunks, which the ranks were asked to send."""
        request = self._request(handover, delivery)
        sent_bytes = sum(header.payload_bytes for header in delivery.headers)
        self.usage.add(transferred_bytes=sent_bytes)
        if self.invitation.task.encoding not in EXACT:
            self.journal.enter(request)
        try:
            answer = self._report(request, sent_bytes)
        except RefusedError as refusal:
            if refusal.detail is None or refusal.detail.code != INCOMPLETE:
                self.journal.answered(None)
                raise
            handover.answers.put(INCOMPLETE)
            return None
        self.journal.answered(answer)
        return answer

    def _request(self, handover: Handover, delivery: Delivery) -> transfer_pb2.ReportRequest:
        download, train, upload = delivery.seconds
        return transfer_pb2.ReportRequest(
            round=round_key_message(self.invitation.task.key),
            upload_id=handover.upload_id,
            digest=update_digest(list(delivery.headers)),
            weight=delivery.weight,
            metrics={} if self.invitation.task.privacy is not None else self.protection.sendable(delivery.metrics),
            partial=delivery.partial,
            download_seconds=download,
            train_seconds=train,
            upload_seconds=upload,
        )


class SessionThread:
    """Runs a session in a thread during training; a context manager that reports a stop to the server at its end.

    If the ranks will be restarted (one is lost, or a collective hangs), nothing is reported: they continue the round,
    and the connection ends with the process.

    Args:
        make: makes the session; its argument makes the work of an invitation.
        journal: of updates with rounding errors; by default one in memory.

    Attributes:
        rounds: rounds to train; None once the session has ended.
    """

    def __init__(self, make: Callable[[MakeWork], Session], journal: Journal | None = None) -> None:
        journal = Journal(None) if journal is None else journal
        self.rounds: queue.Queue[Handover | None] = queue.Queue()
        self._session = make(lambda *parts: SiloWork(*parts, rounds=self.rounds, journal=journal))
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)
        self._summary: Summary | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop("the silo has stopped")
        elif status_of(error) is Exit.FINAL:
            self.stop(f"the silo failed: {text_for_server(error, self._session.policy.errors)}")

    def stop(self, reason: str) -> None:
        """End the session: the current round is abandoned, and the server gets the reason."""
        self._session.stop(reason)
        self._thread.join()

    def leave(self, reason: str) -> None:
        """End the session, but keep the current round open for the silo's return; the server gets no message."""
        self._session.leave(reason)
        self._thread.join()

    def next(self, stopping: Callable[[], bool], look_s: float) -> Handover | None:
        """Wait for a round; None once the session has ended, or if a stop was requested."""
        while not stopping():
            try:
                return self.rounds.get(timeout=look_s)
            except queue.Empty:
                continue
        return None

    def summary(self) -> Summary:
        """Return the summary of the session, once ``rounds`` has returned None.

        Raises:
            FederationError: if the session failed with an error of the client SDK.
        """
        self._thread.join()
        if isinstance(self._error, ClientError):
            raise FederationError(str(self._error)) from self._error
        if self._error is not None:
            raise self._error
        if self._summary is None:
            raise FederationError("the session has ended without a result")
        return self._summary

    def _run(self) -> None:
        try:
            self._summary = asyncio.run(self._session.run())
        except BaseException as error:  # noqa: BLE001  # raised again by ``summary``
            self._error = error
        finally:
            self.rounds.put(None)
