"""Rank 0's other half: the check-in stream in a thread, and the hand-over of rounds between it and the training thread.

The client SDK's session does what it does for an edge client: identity, reconnects, renewal, the participant's policy.
Only the work on an invitation is another: instead of calling ``fit`` it gives the round to the training thread, waits
for what all ranks have sent, and reports.
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
from atoll.client.errors import ClientError, RefusedError
from atoll.client.events import Reported, Trained
from atoll.client.failures import told
from atoll.client.session.invitation import key_to
from atoll.client.session.work import INCOMPLETE, Work, disposition_of
from atoll.client.transfer import Abandoned
from atoll.datacenter.elastic.exits import Exit
from atoll.datacenter.elastic.rank import status_of
from atoll.datacenter.errors import FederationError
from atoll.wire.chunks import ChunkHeader, update_digest
from atoll.wire.v1 import transfer_pb2

if TYPE_CHECKING:
    from atoll.client.session.invitation import Invitation
    from atoll.client.session.session import Session, Summary
    from atoll.client.session.work import MakeWork
    from atoll.client.task import Task
    from atoll.datacenter.federation.spending import Spending

MAX_REPAIRS = 3
FAILED = "failed"


@dataclass(frozen=True)
class Delivery:
    """What all ranks have sent together.

    Attributes:
        headers: of all chunks of all ranks.
        weight: what the update counts for.
        metrics: of the inner steps.
        fetched_bytes: by all ranks, before the steps; the same in each delivery of a round.
        seconds: of download, training and upload.
        partial: fewer steps were made than were asked for.
    """

    headers: Sequence[ChunkHeader]
    weight: int
    metrics: Mapping[str, float]
    fetched_bytes: int
    seconds: tuple[float, float, float]
    partial: bool


@dataclass(frozen=True)
class Handed:
    """A round on its way from the session's thread to the training thread, and back.

    Attributes:
        invitation: what the server asks for.
        upload_id: under which all ranks send.
        address: where transfers go.
        chunk_bytes: of an upload.
        delivered: set by the training thread; an exception if the round cannot be finished.
        answers: what became of the report: ``counted``, … ; or ``incomplete``: the ranks send again what is missing.
    """

    invitation: Invitation
    upload_id: str
    address: str
    chunk_bytes: int
    delivered: queue.Queue[Delivery | Exception] = field(default_factory=queue.Queue)
    answers: queue.Queue[str | Exception] = field(default_factory=queue.Queue)

    def answer(self) -> str:
        """The training thread: wait for what became of the report; ``failed`` if there was no answer."""
        found = self.answers.get()
        return FAILED if isinstance(found, Exception) else found


class SiloParticipant(Participant):
    """What the session needs to know of a silo; ``fit`` is never called, see ``SiloWork``."""

    def __init__(self, examples: int, spending: Spending | None = None) -> None:
        self.examples, self._spending = examples, spending

    def objection(self, task: Task) -> str | None:
        """See ``Participant``: whether all steps that the task asks for stay within the limit of a private job."""
        return None if self._spending is None else self._spending.objection(task)


@dataclass(frozen=True)
class SiloWork(Work):
    """One invitation, done by all ranks. Raises as ``Work``."""

    rounds: queue.Queue[Handed | None] = field(kw_only=True)

    def _perform(self) -> Reported:
        self.protection.charge(self.invitation.task)
        calls = self.link.calls
        handed = Handed(self.invitation, secrets.token_hex(16), calls.endpoint.address, self.link.chunk_bytes)
        self.rounds.put(handed)
        try:
            reported = self._until_counted(handed)
        except Exception as error:
            handed.answers.put(error)
            raise
        handed.answers.put(reported.disposition)
        return reported

    def _until_counted(self, handed: Handed) -> Reported:
        for attempt in range(MAX_REPAIRS + 1):
            delivery = self._delivered(handed)
            if not attempt:
                self.usage.add(transferred_bytes=delivery.fetched_bytes)
            answer = self._reported(handed, delivery)
            if answer is not None:
                return Reported(self.invitation.task.key, disposition_of(answer), delivery.weight)
        raise RefusedError("the server has lost part of the update over and over")

    def _delivered(self, handed: Handed) -> Delivery:
        control = self.invitation.task.control
        with control.on_abandon(lambda: handed.delivered.put(Abandoned(control.reason))):
            outcome = handed.delivered.get()
        self.raise_if_abandoned()
        if isinstance(outcome, Exception):
            raise outcome
        self.observer(Trained(self.invitation.task.key, outcome.weight, outcome.seconds[1], dict(outcome.metrics)))
        return outcome

    def _reported(self, handed: Handed, delivery: Delivery) -> transfer_pb2.ReportResponse | None:
        """The server's answer; None if it lacks chunks, which the ranks have been told."""
        request = self._request(handed, delivery)
        sent_bytes = sum(header.payload_bytes for header in delivery.headers)
        self.usage.add(transferred_bytes=sent_bytes)
        try:
            return self._report(request, sent_bytes)
        except RefusedError as refusal:
            if refusal.detail is None or refusal.detail.code != INCOMPLETE:
                raise
            handed.answers.put(INCOMPLETE)
            return None

    def _request(self, handed: Handed, delivery: Delivery) -> transfer_pb2.ReportRequest:
        download, train, upload = delivery.seconds
        return transfer_pb2.ReportRequest(
            round=key_to(self.invitation.task.key),
            upload_id=handed.upload_id,
            digest=update_digest(list(delivery.headers)),
            weight=delivery.weight,
            metrics={} if self.invitation.task.privacy is not None else self.protection.sendable(delivery.metrics),
            partial=delivery.partial,
            download_seconds=download,
            train_seconds=train,
            upload_seconds=upload,
        )


class SiloDesk:
    """Runs a session beside training, in a thread; a context manager, at whose end the server is told of a stop.

    If the ranks will start again (one is lost, or a collective hangs), it is told nothing: the round under way is still
    theirs, and the connection ends with the process.

    Args:
        make: the session, given how work is done.

    Attributes:
        rounds: to be trained; None once the session has ended.
    """

    def __init__(self, make: Callable[[MakeWork], Session]) -> None:
        self.rounds: queue.Queue[Handed | None] = queue.Queue()
        self._session = make(lambda *parts: SiloWork(*parts, rounds=self.rounds))
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
            self.stop(f"the silo has failed: {told(error, self._session.policy.errors)}")

    def stop(self, reason: str) -> None:
        """End the session: a round under way is given up, and the server is told."""
        self._session.stop(reason)
        self._thread.join()

    def next(self, stopping: Callable[[], bool], look_s: float) -> Handed | None:
        """Wait for a round; None once the session has ended, or if somebody has asked for a stop."""
        while not stopping():
            try:
                return self.rounds.get(timeout=look_s)
            except queue.Empty:
                continue
        return None

    def summary(self) -> Summary:
        """How it went, once ``rounds`` has given None.

        Raises:
            FederationError: if the session failed as the client SDK foresees it.
        """
        self._thread.join()
        if isinstance(self._error, ClientError):
            raise FederationError(str(self._error)) from self._error
        if self._error is not None:
            raise self._error
        if self._summary is None:
            raise FederationError("the session has ended without a word")
        return self._summary

    def _run(self) -> None:
        try:
            self._summary = asyncio.run(self._session.run())
        except BaseException as error:  # noqa: BLE001  # raised again by whoever asks how it went
            self._error = error
        finally:
            self.rounds.put(None)
