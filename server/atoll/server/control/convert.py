"""From the control API's protobuf messages to the values of this package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from atoll.server.control.values import (
    PHASES,
    Certified,
    Member,
    NewTokens,
    Operator,
    Participant,
    Progress,
    Pruned,
    RevokedOperator,
    Round,
    Run,
    RunDetail,
    ServerInfo,
    Token,
)
from atoll.wire.text import make_printable
from atoll.wire.v1 import control_pb2, enrolment_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message


def make_readable(message: Message) -> None:
    """Escape what does not print in an answer, before any of it is shown; see ``atoll.wire.text``.

    Lines of the ledger, which digests are of, and layouts, whose names models go by, stay as they are.
    """
    make_printable(message, as_they_are=("line", "limit_line", "layout"), lines=("job_toml",))


def run_of(message: control_pb2.RunSummary) -> Run:
    """A run."""
    return Run(
        run=message.run,
        name=message.name,
        status=_word(control_pb2.RunStatus, message.status, "RUN_STATUS_"),
        reason=message.reason,
        rounds_total=message.rounds_total,
        rounds_released=message.rounds_released,
        created_at=_time(message.created_at),
        finished_at=_time(message.finished_at),
        model_blob=message.model_blob,
    )


def round_of(message: control_pb2.RoundSummary) -> Round:
    """A round."""
    return Round(
        round=message.round,
        attempt=message.attempt,
        kind=message.kind or "train",
        phase=message.phase,
        reason=message.reason,
        cohort=message.cohort,
        reported=message.reported,
        quorum=message.quorum,
        wanted=message.wanted_reports,
        total_weight=message.total_weight,
        opened_at=_time(message.opened_at),
        closed_at=_time(message.closed_at),
        remaining_s=None if message.remaining_s < 0 else message.remaining_s,
        metrics=MappingProxyType(dict(message.metrics)),
        members=tuple(member_of(member) for member in message.members),
        version=message.version,
        created_at=_time(message.created_at),
        phases_s=MappingProxyType({name: message.phase_seconds[name] for name in _in_order(message.phase_seconds)}),
        fragment=message.fragment if message.fragments else None,
        fragments=message.fragments or 1,
    )


def member_of(message: control_pb2.MemberSummary) -> Member:
    """A member of a round."""
    return Member(
        participant=message.participant,
        organisation=message.organisation,
        status=message.status,
        detail=message.detail,
        weight=message.weight,
        report_s=_seconds(message.report_seconds),
        metrics=MappingProxyType(dict(message.metrics)),
        accept_s=_seconds(message.accept_seconds),
        upload_s=_seconds(message.upload_seconds),
        fold_s=_seconds(message.fold_seconds),
        end_s=_seconds(message.end_seconds),
        claimed_s=MappingProxyType(dict(sorted(message.claimed_seconds.items()))),
        payload_bytes=message.payload_bytes,
    )


def detail_of(message: control_pb2.GetRunResponse) -> RunDetail:
    """A run with its rounds in order."""
    return RunDetail(run_of(message.summary), _rounds(message.rounds), message.connected, message.job_toml)


def progress_of(message: control_pb2.WatchRunResponse) -> Progress:
    """One change of a run."""
    run = run_of(message.summary)
    return Progress(run, round_of(message.round) if message.HasField("round") else None, message.connected)


def new_tokens_of(message: control_pb2.CreateTokenResponse) -> NewTokens:
    """Fresh join tokens."""
    return NewTokens(tuple(message.tokens), _time(message.expires_at))


def operator_of(message: control_pb2.OperatorSummary) -> Operator:
    """An operator."""
    return Operator(
        name=message.name,
        issued_at=_time(message.issued_at),
        expires_at=_time(message.expires_at),
        certificates=message.certificates,
        revoked_at=_time(message.revoked_at),
        revoked_reason=message.revoked_reason,
    )


def certified_of(message: control_pb2.CreateOperatorResponse) -> Certified:
    """A new operator's certificate."""
    return Certified(message.certificate_pem.decode(), message.ca_certificate_pem.decode(), _time(message.expires_at))


def revoked_operator_of(message: control_pb2.RevokeOperatorResponse) -> RevokedOperator:
    """An operator that was shut out."""
    return RevokedOperator(operator_of(message.operator), message.voided_tokens)


def token_of(message: control_pb2.TokenSummary) -> Token:
    """A join token."""
    return Token(
        token_id=message.token_id,
        organisation=message.organisation,
        kind=_word(enrolment_pb2.ParticipantKind, message.kind, "PARTICIPANT_KIND_"),
        created_at=_time(message.created_at),
        expires_at=_time(message.expires_at),
        used_by=message.used_by,
    )


def participant_of(message: control_pb2.ParticipantSummary) -> Participant:
    """A participant."""
    return Participant(
        participant=message.participant,
        organisation=message.organisation,
        kind=_word(enrolment_pb2.ParticipantKind, message.kind, "PARTICIPANT_KIND_"),
        enrolled_at=_time(message.enrolled_at),
        last_seen_at=_time(message.last_seen_at),
        revoked_at=_time(message.revoked_at),
        connected=message.connected,
        examples=message.examples,
        times_selected=message.times_selected,
        times_reported=message.times_reported,
        labels=MappingProxyType(dict(message.labels)),
    )


def server_info_of(message: control_pb2.GetServerInfoResponse) -> ServerInfo:
    """The server."""
    return ServerInfo(
        version=message.version,
        protocol=message.protocol,
        now=message.now,
        started_at=_time(message.started_at),
        connected=message.connected,
        workers=message.workers,
        disk_free_bytes=message.disk_free_bytes,
        disk_reserve_bytes=message.disk_reserve_bytes,
        evaluators=tuple(message.evaluators),
    )


def pruned_of(messages: Iterable[control_pb2.PrunedStorage]) -> tuple[Pruned, ...]:
    """What was removed."""
    return tuple(Pruned(one.kind, one.run, one.count, one.stored_bytes) for one in messages)


def _rounds(messages: Iterable[control_pb2.RoundSummary]) -> tuple[Round, ...]:
    return tuple(map(round_of, sorted(messages, key=lambda item: (item.round, item.attempt))))


def _time(seconds: float) -> float | None:
    return seconds or None


def _seconds(since: float) -> float | None:
    return None if since < 0 else since


def _in_order(phases: Mapping[str, float]) -> list[str]:
    """Protobuf's maps have no order."""
    return [name for name in PHASES if name in phases] + sorted(set(phases) - set(PHASES))


class _Enum(Protocol):
    def Name(self, number: Any, /) -> str: ...  # noqa: N802  (protobuf's name)


def _word(enum: _Enum, number: int, prefix: str) -> str:
    """The lower-case word of an enum value; its number if a newer server sent one that is not known here."""
    try:
        return enum.Name(number).removeprefix(prefix).lower()
    except ValueError:
        return str(number)
