"""Enrolled participants. Rows are never removed: rounds and the ledger refer to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, insert, select, update

from atoll.server.identity import DEFAULT_PROJECT, ParticipantKind, Role
from atoll.server.stores import certificates
from atoll.server.stores.columns import NamedTexts
from atoll.server.stores.errors import RecordMissingError
from atoll.server.stores.row_conversion import fetch_all, fetch_one, select_all, to_row
from atoll.server.stores.schema import participants

_MAX_NAMES = 500  # names per query, since databases limit the parameters of a statement


@dataclass(frozen=True)
class Participant:
    """One enrolled participant. ``examples`` is its latest declaration, ``token_id`` the join token that it used.

    ``hosts`` and ``through`` come from its join token (``identity.TokenRecord``).
    """

    id: str
    organisation: str
    kind: ParticipantKind
    enrolled_at: float
    token_id: str | None = None
    last_seen_at: float | None = None
    examples: int = 0
    labels: NamedTexts = ()
    revoked_at: float | None = None
    revoked_reason: str = ""
    hosts: str = ""
    through: str = ""
    project: str = DEFAULT_PROJECT

    @property
    def role(self) -> Role:
        """The participant's role in its certificates."""
        return Role.of_kind(self.kind)


@dataclass(frozen=True, slots=True)
class CheckedIn:
    """The record of a participant's enrolment, read when it connects."""

    kind: ParticipantKind
    organisation: str
    project: str = DEFAULT_PROJECT


def add(connection: Connection, participant: Participant) -> None:
    """Enrol a participant.

    Raises:
        RecordConflictError: (from the writer) if the id is taken.
    """
    connection.execute(insert(participants).values(to_row(participant)))


def get(connection: Connection, participant: str) -> Participant | None:
    """The participant with this id, or None."""
    return fetch_one(connection, Participant, _query().where(participants.c.id == participant))


def listed(
    connection: Connection, *, project: str | None, after: str = "", limit: int = 1000, organisation: str = ""
) -> tuple[Participant, ...]:
    """Participants of a project (None: of all) after an id, in order of id; only of ``organisation``, if given."""
    query = _query().where(participants.c.id > after)
    if project is not None:
        query = query.where(participants.c.project == project)
    if organisation:
        query = query.where(participants.c.organisation == organisation)
    return fetch_all(connection, Participant, query.order_by(participants.c.id).limit(limit))


def of(connection: Connection, names: Sequence[str]) -> dict[str, Participant]:
    """These participants by id; unknown ones are left out."""
    pages = (names[at : at + _MAX_NAMES] for at in range(0, len(names), _MAX_NAMES))
    found = (fetch_all(connection, Participant, _query().where(participants.c.id.in_(page))) for page in pages)
    return {row.id: row for rows in found for row in rows}


def count_kinds(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Number of these participants by kind."""
    found: Counter[str] = Counter()
    for at in range(0, len(names), _MAX_NAMES):
        chosen = participants.c.id.in_(names[at : at + _MAX_NAMES])
        query = select(participants.c.kind, func.count()).where(chosen).group_by(participants.c.kind)
        found.update({str(kind): count for kind, count in connection.execute(query)})
    return dict(found)


def check_in(connection: Connection, participant: str, *, at: float, examples: int, labels: NamedTexts) -> CheckedIn:
    """Record a participant's declarations when it connects; returns its enrolment.

    Raises:
        RecordMissingError: no such participant.
    """
    # Not UPDATE ... RETURNING: SQLite would allocate and touch a page cache of 87 KB for each call. The heap would then
    # give that memory to the next connection's buffers, few pages of which would otherwise be resident.
    mine = participants.c.id == participant
    enrolment = (participants.c.kind, participants.c.organisation, participants.c.project)
    row = connection.execute(select(*enrolment).where(mine)).one_or_none()
    if row is None:
        raise RecordMissingError("participant", participant)
    connection.execute(update(participants).where(mine).values(last_seen_at=at, examples=examples, labels=labels))
    return CheckedIn(ParticipantKind(row.kind), row.organisation, row.project)


def seen(connection: Connection, *, at: Mapping[str, float]) -> None:
    """Record when participants were last seen: id → epoch seconds."""
    if at:
        statement = update(participants).where(participants.c.id == bindparam("who"))
        rows = [{"who": participant, "moment": moment} for participant, moment in at.items()]
        connection.execute(statement.values(last_seen_at=bindparam("moment")), rows)


def named(connection: Connection, project: str, name: str, *, limit: int) -> tuple[str, ...]:
    """Ids of a project's unrevoked participants with this id or organisation, in order."""
    either = (participants.c.id == name) | (participants.c.organisation == name)
    ours = (participants.c.project == project) & participants.c.revoked_at.is_(None)
    query = select(participants.c.id).where(either, ours).order_by(participants.c.id)
    return tuple(connection.execute(query.limit(limit)).scalars())


def count_standing(connection: Connection, project: str, organisation: str = "") -> int:
    """Number of a project's unrevoked participants, or of those of one ``organisation``."""
    standing = participants.c.revoked_at.is_(None) & (participants.c.kind != ParticipantKind.AGGREGATOR)
    query = select(func.count()).select_from(participants).where(standing, participants.c.project == project)
    if organisation:
        query = query.where(participants.c.organisation == organisation)
    return int(connection.execute(query).scalar_one())


def organisations(connection: Connection, project: str, *, limit: int) -> tuple[str, ...]:
    """The organisations of a project's unrevoked participants, by name."""
    standing = (participants.c.project == project) & participants.c.revoked_at.is_(None)
    query = select(participants.c.organisation).where(standing).distinct()
    return tuple(connection.execute(query.order_by(participants.c.organisation).limit(limit)).scalars())


def revoke(connection: Connection, participant: str, *, at: float, reason: str) -> Participant:
    """Revoke a participant and all its certificates; repeated calls change nothing. Returns the participant.

    Raises:
        RecordMissingError: no such participant.
    """
    standing = (participants.c.id == participant) & participants.c.revoked_at.is_(None)
    connection.execute(update(participants).where(standing).values(revoked_at=at, revoked_reason=reason))
    found = get(connection, participant)
    if found is None:
        raise RecordMissingError("participant", participant)
    certificates.revoke_subject(connection, found.role, participant, at=at, reason=reason)
    return found


def aggregators(connection: Connection, project: str, name: str) -> tuple[Participant, ...]:
    """A project's unrevoked aggregators with this id or organisation."""
    either = (participants.c.id == name) | (participants.c.organisation == name)
    standing = participants.c.revoked_at.is_(None) & (participants.c.kind == ParticipantKind.AGGREGATOR)
    ours = participants.c.project == project
    return fetch_all(connection, Participant, _query().where(either, standing, ours).order_by(participants.c.id))


def named_aggregators(connection: Connection) -> list[tuple[str, str, str]]:
    """Host names, organisation and project of each aggregator that is not revoked."""
    standing = participants.c.revoked_at.is_(None) & (participants.c.kind == ParticipantKind.AGGREGATOR)
    query = select(participants.c.hosts, participants.c.organisation, participants.c.project).where(standing)
    return [(row.hosts, row.organisation, row.project) for row in connection.execute(query)]


def _query() -> Select[Any]:
    return select_all(Participant, participants)
