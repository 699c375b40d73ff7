"""What operators see: rows and live state as the control service's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atoll.server.daemon.operators import Operator
from atoll.server.daemon.records import metrics_of, phase_seconds
from atoll.server.identity import TokenRecord
from atoll.server.jobs import JobFileError, parse_job
from atoll.server.rounds import Member, MemberStatus, RoundKind, RoundState, RunState, RunStatus, trained_before
from atoll.server.rpc.enrolment import KINDS
from atoll.server.stores import ParticipantHistory, rounds, runs
from atoll.server.stores.participants import Participant
from atoll.wire.v1 import control_pb2

NEVER = -1.0
"""Seconds to something that did not happen, or is not known."""
_STATUSES = {
    RunStatus.SUBMITTED: control_pb2.RUN_STATUS_RUNNING,
    RunStatus.RUNNING: control_pb2.RUN_STATUS_RUNNING,
    RunStatus.PAUSED: control_pb2.RUN_STATUS_PAUSED,
    RunStatus.FINISHED: control_pb2.RUN_STATUS_FINISHED,
    RunStatus.FAILED: control_pb2.RUN_STATUS_FAILED,
    RunStatus.CANCELLED: control_pb2.RUN_STATUS_CANCELLED,
}


def run_summary(run: runs.Run) -> control_pb2.RunSummary:
    """A run as its row says."""
    return control_pb2.RunSummary(
        run=run.id,
        name=run.name,
        status=_STATUSES[RunStatus(run.status)],
        reason=run.reason,
        rounds_total=run.rounds_total,
        rounds_released=run.rounds_released,
        created_at=run.created_at,
        finished_at=run.finished_at or 0.0,
        model_blob=run.current_model,
    )


def past_round(
    row: rounds.Round, members: Iterable[rounds.Member], organisations: Mapping[str, str]
) -> control_pb2.RoundSummary:
    """An attempt that has ended, as its rows say."""
    return control_pb2.RoundSummary(
        round=row.round,
        attempt=row.attempt,
        kind=row.kind,
        phase=row.phase,
        reason=row.reason,
        cohort=row.cohort,
        reported=row.reported,
        total_weight=row.total_weight,
        opened_at=row.opened_at or 0.0,
        closed_at=row.closed_at or 0.0,
        remaining_s=-1.0,
        metrics=dict(row.metrics),
        created_at=row.created_at,
        phase_seconds=dict(row.durations_s),
        members=[_past_member(member, organisations) for member in members],
    )


def live_round(
    state: RunState, live: RoundState, server_metrics: Mapping[str, float], now: float
) -> control_pb2.RoundSummary:
    """The attempt in work, without its members."""
    straggler = state.policy.straggler
    return control_pb2.RoundSummary(
        round=live.key.round,
        attempt=live.key.attempt,
        kind=live.kind.value,
        phase=live.phase.value,
        reason=live.reason,
        cohort=len(live.roster),
        reported=live.roster.reported,
        total_weight=sum(m.reported_weight for m in live.roster if m.status is MemberStatus.REPORTED),
        opened_at=live.opened_at,
        closed_at=live.ended_at,
        remaining_s=max(0.0, live.deadline_at - now) if live.phase.value == "open" else -1.0,
        metrics={**metrics_of(live.roster, state.policy.max_weight), **server_metrics},
        quorum=straggler.quorum,
        wanted_reports=straggler.cohort_size,
        created_at=live.created_at,
        phase_seconds=phase_seconds(live),
    )


@dataclass(frozen=True, slots=True)
class Course:
    """How many fragments the rounds of a job take turns with, and after how many train rounds one evaluates."""

    fragments: int = 1
    evaluate_every: int = 0

    @classmethod
    def of(cls, job_toml: str) -> Course:
        """What a job says; of one of another version that cannot be read here, rounds are shown without it."""
        try:
            spec = parse_job(job_toml)
        except JobFileError:
            return cls()
        return cls(spec.aggregation.fragments, spec.evaluation.every)

    def placed(self, found: control_pb2.RoundSummary) -> control_pb2.RoundSummary:
        """The round with its place among the train rounds, and the fragment of the model that it is over."""
        found.version = trained_before(self.evaluate_every, found.round)
        if self.fragments > 1 and found.kind == RoundKind.TRAIN:
            found.fragment = found.version % self.fragments
            found.fragments = self.fragments
        return found


def token_summary(record: TokenRecord) -> control_pb2.TokenSummary:
    """A join token, without its secret."""
    return control_pb2.TokenSummary(
        token_id=record.id,
        organisation=record.organisation,
        kind=KINDS[record.kind],
        created_at=record.created_at,
        expires_at=record.expires_at,
        used_by=record.used_by or "",
    )


def operator_summary(operator: Operator) -> control_pb2.OperatorSummary:
    """An operator."""
    return control_pb2.OperatorSummary(
        name=operator.name,
        issued_at=operator.issued_at,
        expires_at=operator.expires_at,
        certificates=operator.certificates,
        revoked_at=operator.revoked_at or 0.0,
        revoked_reason=operator.revoked_reason,
    )


def participant_summary(
    row: Participant, history: ParticipantHistory | None, *, connected: bool
) -> control_pb2.ParticipantSummary:
    """A participant."""
    return control_pb2.ParticipantSummary(
        participant=row.id,
        organisation=row.organisation,
        kind=KINDS[row.kind],
        enrolled_at=row.enrolled_at,
        last_seen_at=row.last_seen_at or 0.0,
        revoked_at=row.revoked_at or 0.0,
        connected=connected,
        examples=row.examples,
        times_selected=history.times_selected if history else 0,
        times_reported=history.times_reported if history else 0,
        labels=dict(row.labels),
    )


def _past_member(member: rounds.Member, organisations: Mapping[str, str]) -> control_pb2.MemberSummary:
    return control_pb2.MemberSummary(
        participant=member.participant,
        organisation=organisations.get(member.participant, ""),
        status=member.status,
        detail=member.detail,
        weight=member.weight,
        report_seconds=_since(member.invited_at, member.reported_at),
        metrics=dict(member.metrics),
        accept_seconds=_since(member.invited_at, member.accepted_at),
        upload_seconds=_since(member.invited_at, member.upload_at),
        fold_seconds=_since(member.invited_at, member.folded_at),
        end_seconds=_since(member.invited_at, member.ended_at),
        claimed_seconds=dict(member.claimed_s),
        payload_bytes=member.payload_bytes,
    )


def live_member(member: Member, live: RoundState) -> control_pb2.MemberSummary:
    """A member of the attempt in work."""
    reported = member.status is MemberStatus.REPORTED
    ended = member.status not in (MemberStatus.INVITED, MemberStatus.TRAINING)
    return control_pb2.MemberSummary(
        participant=member.participant,
        status=member.status.value,
        detail=member.detail,
        weight=member.reported_weight,
        report_seconds=_since(live.opened_at, member.at if reported else None),
        metrics=dict(member.metrics),
        accept_seconds=_since(live.opened_at, member.accepted_at),
        upload_seconds=NEVER,
        fold_seconds=NEVER,
        end_seconds=_since(live.opened_at, member.at if ended else None),
    )


def _since(invited_at: float | None, at: float | None) -> float:
    """Seconds from the invitation; 0 for a clock that was set back, ``NEVER`` if either did not happen."""
    return max(0.0, at - invited_at) if at and invited_at else NEVER
