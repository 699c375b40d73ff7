"""Converts rows and live state to messages of the control service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from atoll.server.access.operators import Operator
from atoll.server.control import message_of
from atoll.server.identity import Rights, TokenRecord
from atoll.server.jobs import JobFileError, parse_job
from atoll.server.rounds import Member, MemberStatus, Phase, RoundKind, RoundState, RunState, RunStatus, trained_before
from atoll.server.rpc.enrolment import KINDS
from atoll.server.rpc.operations import ROLE_NUMBERS
from atoll.server.runs.records import metrics_of, round_record
from atoll.server.stores import ParticipantHistory, models, rounds, runs
from atoll.server.stores.participants import Participant
from atoll.wire.v1 import control_pb2

_STATUSES = {
    RunStatus.SUBMITTED: control_pb2.RUN_STATUS_RUNNING,
    RunStatus.RUNNING: control_pb2.RUN_STATUS_RUNNING,
    RunStatus.PAUSED: control_pb2.RUN_STATUS_PAUSED,
    RunStatus.FINISHED: control_pb2.RUN_STATUS_FINISHED,
    RunStatus.FAILED: control_pb2.RUN_STATUS_FAILED,
    RunStatus.CANCELLED: control_pb2.RUN_STATUS_CANCELLED,
}
_UNPLACED = {"version": 0, "fragment": None, "fragments": 1}
"""Fields that ``RoundNumbering.numbered`` sets."""


def run_summary(run: runs.Run) -> control_pb2.RunSummary:
    """A run from its row."""
    return message_of(
        control_pb2.RunSummary,
        run,
        run=run.id,
        status=_STATUSES[RunStatus(run.status)],
        model_blob=run.current_model,
        extended_after=[int(released) for released in run.extended_after or ()],
    )


def best_model(connection: Connection, run: runs.Run) -> control_pb2.BestModel | None:
    """The best model by the metric that the run's job names; None before the first measurement."""
    if run.best_model is None or run.best_value is None:
        return None
    version, best = models.version_of(connection, run.id, run.best_model), parse_job(run.job_toml).best
    if version is None or best is None:
        return None
    metric, mode = best
    return control_pb2.BestModel(
        metric=metric, mode=mode, value=run.best_value, round=version, model_blob=run.best_model
    )


def past_round(
    row: rounds.Round, members: Iterable[rounds.Member], participants: Mapping[str, Participant]
) -> control_pb2.RoundSummary:
    """An attempt that has ended, from its rows; ``participants`` are its members as they are enrolled, by id."""
    found = _round(row)
    found.members.extend(_past_member(member, participants.get(member.participant)) for member in members)
    return found


def live_round(
    state: RunState, live: RoundState, server_metrics: Mapping[str, float], now: float
) -> control_pb2.RoundSummary:
    """The open attempt, without its members."""
    straggler = state.policy.straggler
    metrics = {**metrics_of(live.roster, state.policy.max_weight), **server_metrics}
    return _round(
        round_record(state.run_id, live, metrics),
        quorum=straggler.quorum,
        wanted=straggler.cohort_size,
        remaining_s=max(0.0, live.deadline_at - now) if live.phase is Phase.OPEN else None,
    )


@dataclass(frozen=True, slots=True)
class RoundNumbering:
    """The number of fragments that a job's train rounds update in turn, and of train rounds per evaluation."""

    fragments: int = 1
    evaluate_every: int = 0

    @classmethod
    def of(cls, job_toml: str) -> RoundNumbering:
        """From a job; the defaults if another version wrote the job and this one cannot read it."""
        try:
            spec = parse_job(job_toml)
        except JobFileError:
            return cls()
        return cls(spec.aggregation.fragments, spec.evaluation.every)

    def numbered(self, found: control_pb2.RoundSummary, version: int | None = None) -> control_pb2.RoundSummary:
        """The round with its number among the train rounds, and the fragment of the model that it updates.

        ``version`` is the recorded model that it handed out; None if an earlier version of the server recorded the
        round.
        """
        found.version = trained_before(self.evaluate_every, found.round) if version is None else version
        if self.fragments > 1 and found.kind == RoundKind.TRAIN:
            found.fragment = found.version % self.fragments
            found.fragments = self.fragments
        return found


def token_summary(record: TokenRecord) -> control_pb2.TokenSummary:
    """A join token, without its secret."""
    return message_of(control_pb2.TokenSummary, record, token_id=record.id, kind=KINDS[record.kind])


def operator_summary(operator: Operator, project: str | None) -> control_pb2.OperatorSummary:
    """An operator with its roles in all projects and in single ones; within a project, only the role there."""
    everywhere = operator.rights.everywhere if project is None else None
    return message_of(
        control_pb2.OperatorSummary,
        operator,
        role=control_pb2.OPERATOR_ROLE_UNSPECIFIED if everywhere is None else ROLE_NUMBERS[everywhere],
        projects=project_roles(operator.rights, project),
    )


def project_roles(rights: Rights, project: str | None) -> list[control_pb2.ProjectRoleSummary]:
    """The roles in single projects, by project; only that in ``project``, if given."""
    return [
        control_pb2.ProjectRoleSummary(project=name, role=ROLE_NUMBERS[one.role], organisation=one.organisation)
        for name, one in sorted(rights.projects.items())
        if project in (None, name)
    ]


def participant_summary(
    row: Participant, history: ParticipantHistory | None, *, connected_at: float | None = None
) -> control_pb2.ParticipantSummary:
    """A participant; ``connected_at`` is the current time in epoch seconds if it is connected, else None.

    A connected participant is seen now; the row only has the time at which it connected.
    """
    seen = {} if connected_at is None else {"last_seen_at": connected_at}
    return message_of(
        control_pb2.ParticipantSummary,
        row,
        participant=row.id,
        times_selected=history.times_selected if history else 0,
        times_reported=history.times_reported if history else 0,
        kind=KINDS[row.kind],
        connected=connected_at is not None,
        labels=dict(row.labels),
        **seen,
    )


def _round(
    record: rounds.Round, *, quorum: int = 0, wanted: int = 0, remaining_s: float | None = None
) -> control_pb2.RoundSummary:
    """An attempt from its record, without members; the further fields are those of an open attempt only."""
    return message_of(
        control_pb2.RoundSummary,
        record,
        metrics=dict(record.metrics),
        phases_s=dict(record.durations_s),
        members=None,
        quorum=quorum,
        wanted=wanted,
        remaining_s=remaining_s,
        **_UNPLACED,
    )


def _past_member(member: rounds.Member, participant: Participant | None) -> control_pb2.MemberSummary:
    return message_of(
        control_pb2.MemberSummary,
        member,
        organisation="" if participant is None else participant.organisation,
        labels={} if participant is None else dict(participant.labels),
        report_s=_since(member.invited_at, member.reported_at),
        metrics=dict(member.metrics),
        accept_s=_since(member.invited_at, member.accepted_at),
        upload_s=_since(member.invited_at, member.upload_at),
        fold_s=_since(member.invited_at, member.folded_at),
        end_s=_since(member.invited_at, member.ended_at),
        claimed_s=dict(member.claimed_s),
    )


def live_member(member: Member, live: RoundState) -> control_pb2.MemberSummary:
    """A member of the open attempt. Cohorts have thousands, so the fields are set one by one, which is faster."""
    reported = member.status is MemberStatus.REPORTED
    ended = member.status not in (MemberStatus.INVITED, MemberStatus.TRAINING)
    return control_pb2.MemberSummary(
        participant=member.participant,
        status=member.status.value,
        detail=member.detail,
        weight=member.reported_weight,
        report_s=_since(live.opened_at, member.at if reported else None),
        metrics=dict(member.metrics),
        accept_s=_since(live.opened_at, member.accepted_at),
        end_s=_since(live.opened_at, member.at if ended else None),
    )


def _since(invited_at: float | None, at: float | None) -> float | None:
    """Seconds since the invitation; 0 if the clock was set back, None if one of the two events has not happened."""
    return max(0.0, at - invited_at) if at and invited_at else None
