"""Turns a participant's reply or report into an engine event, and a report also into a row and an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Connection

from atoll.server.errors import ConflictError, ForbiddenError, InvalidRequestError, ServerError, TooLateError
from atoll.server.ingest.coordinator_api import Commit, Disposition, ReportReceipt
from atoll.server.rounds import (
    Accepted,
    Declined,
    Effect,
    Member,
    MemberFailed,
    Metrics,
    Receipt,
    Reported,
    RoundKey,
    RunState,
    UpdateRef,
    Verdict,
)
from atoll.server.runs.invitations import ANY_WEIGHT
from atoll.server.runs.records import claimed_seconds, report_metrics
from atoll.server.runs.scores import areas_of, scores_of
from atoll.server.stores import reports
from atoll.wire.status import Recovery
from atoll.wire.v1 import participation_pb2, transfer_pb2

MAX_METRICS = 64
"""Maximum number of training metrics, and of evaluation metrics; the SDK has the same limits."""
MAX_METRIC_NAME_CHARS = 128

_WAIT = "wait for the next invitation"
_DISPOSITIONS = {
    Verdict.COUNTED: Disposition.COUNTED,
    Verdict.CARRIED: Disposition.CARRIED,
    Verdict.LATE: Disposition.DROPPED,
}


class ReportRefusedError(ConflictError):
    """The report does not count, and no later report of this participant can count in the round."""

    recovery = Recovery.NEXT_TASK


def reported_event(commit: Commit, key: RoundKey) -> Reported:
    """The engine's event for a report.

    Raises:
        InvalidRequestError: for impossible weights, too many or impossible metrics, or a digest without an upload.
    """
    report = commit.report
    if max(report.weight, report.evaluation_weight) > ANY_WEIGHT:
        raise InvalidRequestError(
            "report.weight",
            f"weight {report.weight}, evaluation weight {report.evaluation_weight}: at most {ANY_WEIGHT}",
            "report the number of examples used",
        )
    if report.digest and not report.upload_id:
        raise InvalidRequestError(
            "report.digest", "a digest, but no upload_id", "name the upload, or leave the digest out"
        )
    for figures in (report.metrics, report.evaluation):
        if len(figures) > MAX_METRICS or not all(0 < len(name) <= MAX_METRIC_NAME_CHARS for name in figures):
            raise InvalidRequestError(
                "report.metrics",
                f"{len(figures)} metrics: at most {MAX_METRICS}, with names of 1 to {MAX_METRIC_NAME_CHARS} characters",
                "report fewer metrics, or shorter names",
            )
    scores = scores_of(report)
    metrics = report_metrics(report.metrics, {**report.evaluation, **areas_of(scores)}, report.evaluation_weight)
    weight = report.weight if report.upload_id else report.evaluation_weight
    update = None
    if report.upload_id:
        update = UpdateRef(key, commit.participant, report.digest, weight, commit.node)
    try:
        return Reported(key, commit.participant, update, weight, metrics, scores)
    except ValueError as error:
        raise InvalidRequestError("report.metrics", str(error), "leave metrics out that are not finite") from None


def without_figures(commit: Commit) -> Commit:
    """The report without its metrics: a private run does not keep them, since they carry no noise."""
    report = transfer_pb2.ReportRequest()
    report.CopyFrom(commit.report)
    for field in ("metrics", "evaluation", "evaluation_weight", "scores"):
        report.ClearField(field)
    return replace(commit, report=report)


@dataclass(frozen=True, slots=True)
class ReportRecorder:
    """Stores the report's row if the engine acknowledges it; an ``Also``.

    Attributes:
        run: the run's id.
        commit: the report.
        metrics: its figures, as in its event.
        now: epoch seconds of its arrival.
    """

    run: str
    commit: Commit
    metrics: Metrics
    now: float

    def __call__(self, connection: Connection, effects: tuple[Effect, ...]) -> None:
        """See ``Also``."""
        row = self.row(effects)
        if row is not None:
            reports.record(connection, row)

    def row(self, effects: tuple[Effect, ...]) -> reports.Report | None:
        """The report's row, given its effects; None if the report is not acknowledged."""
        commit, report = self.commit, self.commit.report
        receipt = _receipt(effects, commit.participant)
        if receipt is None or receipt.verdict not in (Verdict.COUNTED, Verdict.CARRIED):
            return None
        return reports.Report(
            run_id=self.run,
            round=report.round.round,
            attempt=report.round.attempt,
            participant=commit.participant,
            digest=report.digest,
            upload_id=report.upload_id,
            weight=report.weight if report.upload_id else report.evaluation_weight,
            node=commit.node,
            received_at=self.now,
            disposition=_DISPOSITIONS[receipt.verdict].value,
            payload_bytes=commit.payload_bytes,
            norm=commit.norm,
            metrics=self.metrics,
            upload_at=commit.upload_at or None,
            claimed_s=claimed_seconds(report),
        )


def answer_to(effects: tuple[Effect, ...], participant: str, digest: str) -> ReportReceipt:
    """The answer to the participant.

    Raises:
        ReportRefusedError: if the report is refused.
    """
    receipt = _receipt(effects, participant)
    if receipt is None:
        raise ReportRefusedError("report.refused", "the round does not take this report", _WAIT)
    if receipt.verdict is Verdict.CONFLICT:
        raise ReportRefusedError(
            "report.conflict",
            "another report of this participant for the round was acknowledged before",
            "the first report counts; report once per round",
        )
    if receipt.verdict is Verdict.REJECTED:
        raise ReportRefusedError("report.refused", receipt.detail, _WAIT)
    return ReportReceipt(_DISPOSITIONS[receipt.verdict], digest)


def member_of(state: RunState, key: RoundKey, participant: str) -> Member | None:
    """The participant's roster entry in a round that the state still holds; None if it is not a member."""
    if state.round is not None and state.round.key == key:
        return state.round.roster.get(participant)
    for past in state.past:
        if past.key == key:
            return past.roster.get(participant)
    return None


def no_longer_wanted(state: RunState, key: RoundKey, participant: str) -> ServerError:
    """The reason why a report is not wanted; non-members are recognised only for rounds that the state still holds."""
    remembered = {past.key for past in state.past} | ({state.round.key} if state.round is not None else set())
    member = member_of(state, key, participant)
    if member is None and key in remembered:
        return ForbiddenError(
            "round.stranger", f"participant {participant} is not a member of round {key}", "wait for an invitation"
        )
    if state.round is None or key > state.round.key:
        return InvalidRequestError("round.unknown", f"round {key} has not begun", _WAIT, recovery=Recovery.NEXT_TASK)
    standing = "it is over" if member is None else f"{member.status} {member.detail}".rstrip()
    return TooLateError("round.over", f"round {key}: {standing}", "wait for the next invitation")


def _receipt(effects: tuple[Effect, ...], participant: str) -> Receipt | None:
    for effect in effects:
        if isinstance(effect, Receipt) and effect.participant == participant:
            return effect
    return None


def reply_event(participant: str, reply: participation_pb2.TaskReply) -> Accepted | Declined | MemberFailed:
    """The event of a participant's reply to its invitation.

    Raises:
        InvalidRequestError: for an unknown verdict.
    """
    key, verdicts = RoundKey(reply.key.round, reply.key.attempt), participation_pb2.TaskReply
    match reply.verdict:
        case verdicts.VERDICT_ACCEPTED:
            return Accepted(key, participant)
        case verdicts.VERDICT_DECLINED:
            return Declined(key, participant, reply.reason or "no reason given")
        case verdicts.VERDICT_FAILED:
            return MemberFailed(key, participant, reply.reason or "no reason given")
        case _:
            raise InvalidRequestError("reply.verdict", f"verdict {reply.verdict}: accepted, declined or failed")
