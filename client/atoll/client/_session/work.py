"""One task from invitation to acknowledged report: blocking steps, one after the other, in a worker thread."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from atoll.client._clock import now_s
from atoll.client._session.invitation import MODEL, Input, Invitation, round_key_message
from atoll.client._session.protection import Protection
from atoll.client._session.unread_settings import warn_of_mistyped, watched
from atoll.client._statistics import answer
from atoll.client._telemetry.logs import USERS_CODE, about
from atoll.client._telemetry.tracing import Tracing
from atoll.client._telemetry.users_errors import note_shapes
from atoll.client._transfer.blob_cache import BlobCache
from atoll.client._transfer.retrier import Abandoned
from atoll.client._transfer.task_transfers import TaskTransfers
from atoll.client._transfer.upload import Upload
from atoll.client.errors import BudgetSpentError, RefusedError, TrainerError, trainer_error
from atoll.client.events import Observer, Reported, Trained, Transferred
from atoll.client.model import Model
from atoll.client.participant import declared_examples
from atoll.client.task import TaskKind
from atoll.client.update import Evaluation, Update, check_evaluation, check_update, finite_metrics
from atoll.wire.chunks import UploadKey
from atoll.wire.v1 import transfer_pb2

if TYPE_CHECKING:
    from atoll.client._state.usage import UsageLog
    from atoll.client.participant import Participant
    from atoll.client.task import RoundKey, Task
    from atoll.wire.layout import Layout

log = logging.getLogger("atoll.client")
Result = TypeVar("Result")

INCOMPLETE = "upload.incomplete"
"""Error code for a report of which the server lacks chunks: the client sends them again."""
_MAX_REPAIRS = 3
_MIN_RESERVE_S = 0.5
_RESERVE_SHARE = 0.25
_ASSUMED_RATE = 50e6
_DISPOSITIONS = {
    transfer_pb2.ReportResponse.DISPOSITION_COUNTED: "counted",
    transfer_pb2.ReportResponse.DISPOSITION_CARRIED: "carried",
    transfer_pb2.ReportResponse.DISPOSITION_DROPPED: "dropped",
}


@dataclass(frozen=True)
class Work:
    """The work on one invitation.

    Raises (from ``perform``):
        Abandoned: if the server or the user no longer wants the result.
        TrainerError: if the participant's code failed or broke the contract.
        NotPermittedError, RoundGoneError, RefusedError, UnreachableError: from the transfers.
    """

    participant: Participant
    invitation: Invitation
    transfers: TaskTransfers
    cache: BlobCache
    usage: UsageLog
    observer: Observer
    tracing: Tracing = field(default_factory=Tracing)
    protection: Protection = field(default_factory=Protection)
    logs_failures: bool = True

    def perform(self) -> Reported:
        """Download, evaluate, train, upload and report; returns the event of the report."""
        task = self.invitation.task
        try:
            with about(task.key), self.tracing.task(task):
                return self.perform_steps()
        finally:
            task.control.disarm()

    def perform_steps(self) -> Reported:
        """The steps of ``perform``, within the task's log context and trace; a silo replaces them."""
        started = now_s()
        with self.tracing.step("download"):
            model, task = self._inputs()
        settings = watched(task.settings, task.key.run) if task.kind is TaskKind.TRAIN else None
        if settings is not None:
            task = dataclasses.replace(task, settings=settings)
        request = transfer_pb2.ReportRequest(round=round_key_message(task.key), download_seconds=now_s() - started)
        task.control.arm(upload_reserve_s(task, request.download_seconds))
        evaluation = self._evaluate(model, task, request)
        if evaluation is not None:
            request.evaluation.update(self.protection.sendable(evaluation.metrics))
            request.evaluation_weight = int(evaluation.weight)
            for name in self.protection.sendable(dict.fromkeys(evaluation.scores, 0.0)):
                histogram = evaluation.scores[name]
                request.scores[name].negatives.extend(histogram.negatives)
                request.scores[name].positives.extend(histogram.positives)
        upload = None
        if task.kind is not TaskKind.EVALUATE:
            upload = self._train(model, task, request)
            if settings is not None:
                warn_of_mistyped(settings, task.key.run)
        self.raise_if_abandoned()
        answer = self._deliver(upload, request)
        weight = int(request.weight or request.evaluation_weight)
        return Reported(task.key, disposition_of(answer), weight)

    def _inputs(self) -> tuple[Model, Task]:
        models = {item.name: self._fetch(item) for item in self.invitation.inputs}
        model = models.pop(MODEL)
        return model, dataclasses.replace(self.invitation.task, inputs=models)

    def _fetch(self, item: Input) -> Model:
        if item.content:
            self._progress("download")(len(item.content), len(item.content))
            return Model(item.layout, memoryview(item.content))
        path = self.transfers.fetch(item.blob, item.layout.size_bytes, self.cache, self._progress("download"))
        return Model(item.layout, self.cache.map(path))

    def _evaluate(self, model: Model, task: Task, request: transfer_pb2.ReportRequest) -> Evaluation | None:
        wanted = task.kind is TaskKind.EVALUATE or (task.evaluate and self.participant.can_evaluate)
        if not wanted or not self.protection.evaluates(task):
            return None
        self.raise_if_abandoned()
        with self.tracing.step("evaluate"):
            evaluation, seconds = timed(
                lambda: self.participant.evaluate(model, task), "evaluate", model.layout, logged=self.logs_failures
            )
        request.evaluate_seconds = seconds
        check_evaluation(evaluation)
        self._announce_trained(task.key, evaluation.weight, seconds, evaluation)
        return evaluation

    def _train(self, model: Model, task: Task, request: transfer_pb2.ReportRequest) -> Upload:
        self.raise_if_abandoned()
        self.protection.charge(task)
        asks = task.kind is TaskKind.STATISTICS
        work = (lambda: answer(self.participant, model, task)) if asks else (lambda: self.participant.fit(model, task))
        what = "table" if asks else "fit"
        with self.tracing.step(what):
            update, seconds = timed(work, what, None if asks else model.layout, logged=self.logs_failures)
        self.raise_if_abandoned()
        check_update(update, model.layout, task)
        self._announce_trained(task.key, update.weight, seconds, update)
        sent = self.protection.outgoing(model, update, task, declared_examples(self.participant))
        request.upload_id = secrets.token_hex(16)
        request.weight, request.partial, request.train_seconds = sent.weight, sent.partial, seconds
        request.metrics.update(sent.metrics)
        key = UploadKey(task.run, task.round, task.attempt, request.upload_id)
        return Upload(key, sent.shard, task.encoding, self.transfers.chunk_bytes)

    def _deliver(self, upload: Upload | None, request: transfer_pb2.ReportRequest) -> transfer_pb2.ReportResponse:
        if upload is None:
            return self._report(request)
        progress, began = self._progress("upload"), now_s()
        if upload.comes_along:
            request.update = upload.whole()
            request.digest = upload.digest
            answer = self._report(request)
            progress(upload.total_bytes, upload.total_bytes)
            return answer
        with self.tracing.step("upload"):
            self.transfers.resume(upload, progress, ask=False)
        request.upload_seconds = now_s() - began
        request.digest = upload.digest
        for _ in range(_MAX_REPAIRS):
            try:
                return self._report(request, upload.total_bytes)
            except RefusedError as refusal:
                if refusal.detail is None or refusal.detail.code != INCOMPLETE:
                    raise
                log.warning("the server lost part of the upload (%s); sending it again", refusal)
            with self.tracing.step("upload"):
                self.transfers.resume(upload, progress)
        return self._report(request, upload.total_bytes)

    def _report(self, request: transfer_pb2.ReportRequest, uploaded_bytes: int = 0) -> transfer_pb2.ReportResponse:
        self.invitation.task.control.reporting.set()
        with self.tracing.step("report"):
            return self.transfers.report(request, uploaded_bytes)

    def _announce_trained(self, key: RoundKey, weight: int, seconds: float, result: Update | Evaluation) -> None:
        metrics = finite_metrics(result.metrics)
        lost = sorted(set(result.metrics) - set(metrics))
        if lost:
            log.warning("metrics that are not finite are left out of the report: %s", ", ".join(lost))
        self.observer(Trained(key, int(weight), seconds, metrics))

    def _progress(self, direction: str) -> Callable[[int, int], None]:
        key = self.invitation.task.key

        def progress(done_bytes: int, total_bytes: int) -> None:
            if done_bytes == total_bytes:
                self.usage.add(transferred_bytes=total_bytes)
            self.observer(Transferred(key, direction, done_bytes, total_bytes))

        return progress

    def raise_if_abandoned(self) -> None:
        """Raise ``Abandoned`` if the result is no longer wanted."""
        if self.invitation.task.control.abandoned.is_set():
            raise Abandoned(self.invitation.task.control.reason)


MakeWork = Callable[
    ["Participant", Invitation, TaskTransfers, BlobCache, "UsageLog", Observer, Tracing, Protection], Work
]
"""Makes the work on an invitation: ``Work`` itself, or a subclass."""


def disposition_of(answer: transfer_pb2.ReportResponse) -> str:
    """The disposition of a report: "counted", "carried" or "dropped"."""
    return _DISPOSITIONS.get(answer.disposition, "counted")


def upload_reserve_s(task: Task, download_s: float) -> float:
    """Seconds to reserve for the upload: 1.5 times the download time, or the time at 50 MB/s, whichever is longer.

    At most a quarter of the time to the deadline.
    """
    wanted = max(1.5 * download_s, task.model_bytes / _ASSUMED_RATE) + _MIN_RESERVE_S
    return min(wanted, _RESERVE_SHARE * max(0.0, task.remaining_s))


def timed(
    work: Callable[[], Result], what: str, layout: Layout | None = None, *, logged: bool = True
) -> tuple[Result, float]:
    """Run the participant's code; return its result and duration. A failure is ``logged`` with its traceback.

    ``layout`` is that of the code's input model; an error about shapes names its shapes.

    Raises:
        TrainerError: for any exception of that code, also ``SystemExit`` and ``KeyboardInterrupt``, which end the task
            and not the client.
        BudgetSpentError: if that code raised it.
    """
    started = now_s()
    try:
        return work(), now_s() - started
    except (TrainerError, BudgetSpentError):
        _log_failure(what, logged)
        raise
    except BaseException as error:
        if layout is not None:
            note_shapes(error, layout)
        _log_failure(what, logged)
        raise trainer_error(what, error) from error


def _log_failure(what: str, logged: bool) -> None:
    if logged:
        log.exception("%s failed", what, extra=USERS_CODE)
