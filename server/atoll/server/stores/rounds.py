"""Attempts of rounds and their members, for display. A run resumes from its event log, not from these rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, update

from atoll.server.stores.columns import NamedNumbers
from atoll.server.stores.dialects import upsert
from atoll.server.stores.row_conversion import fetch_all, fetch_one, select_all, to_row
from atoll.server.stores.schema import members, rounds

_TRAIN = "train"
_RELEASED = "released"
_SENT = ("reported", "rejected")


@dataclass(frozen=True)
class Round:
    """One attempt of one round.

    ``durations_s`` is by phase; ``seed`` fits in a signed 64-bit integer. ``version`` is the model that it handed out,
    as the number of train rounds released before; None if an earlier version of the server recorded the round.
    """

    run_id: str
    round: int
    attempt: int
    kind: str
    phase: str
    created_at: float
    reason: str = ""
    sampler: str = ""
    seed: int = 0
    eligible: int = 0
    cohort: int = 0
    reported: int = 0
    total_weight: int = 0
    opened_at: float | None = None
    deadline_at: float | None = None
    closed_at: float | None = None
    model: str | None = None
    version: int | None = None
    metrics: NamedNumbers = ()
    durations_s: NamedNumbers = ()


@dataclass(frozen=True)
class Member:
    """One member of an attempt: its status and, in ``detail``, why it did not count.

    A time is None if the event did not happen or is unknown. ``upload_at`` is when the first byte of its update
    arrived, ``ended_at`` when its outcome was decided. ``claimed_s`` has the seconds that it reported for each step, by
    its own clock.
    """

    run_id: str
    round: int
    attempt: int
    participant: str
    status: str
    detail: str = ""
    declared_weight: int = 0
    weight: int = 0
    payload_bytes: int = 0
    invited_at: float | None = None
    accepted_at: float | None = None
    upload_at: float | None = None
    reported_at: float | None = None
    folded_at: float | None = None
    ended_at: float | None = None
    claimed_s: NamedNumbers = ()
    metrics: NamedNumbers = ()


def put(connection: Connection, record: Round) -> None:
    """Insert or replace an attempt."""
    upsert(connection, rounds, [to_row(record)])


def put_members(connection: Connection, records: Iterable[Member]) -> None:
    """Insert or replace members; their attempt and the participants must exist."""
    upsert(connection, members, [to_row(record) for record in records])


def amend_member(
    connection: Connection, run_id: str, key: tuple[int, int], participant: str, *, status: str, detail: str
) -> None:
    """Update a member of an ended attempt; ``key`` is (round, attempt). Unknown members are ignored."""
    this = (
        (members.c.run_id == run_id)
        & (members.c.round == key[0])
        & (members.c.attempt == key[1])
        & (members.c.participant == participant)
    )
    connection.execute(update(members).where(this).values(status=status, detail=detail))


def get(connection: Connection, run_id: str, round_number: int, attempt: int) -> Round | None:
    """One attempt; None if it is not recorded."""
    query = select_all(Round, rounds).where(
        rounds.c.run_id == run_id, rounds.c.round == round_number, rounds.c.attempt == attempt
    )
    return fetch_one(connection, Round, query)


def newest(
    connection: Connection, run_id: str, *, limit: int, only: int | None = None, since: int = 0
) -> tuple[Round, ...]:
    """The newest ``limit`` attempts of a run's rounds from number ``since`` on, or of round ``only``, in order."""
    query = select_all(Round, rounds).where(rounds.c.run_id == run_id, rounds.c.round >= since)
    if only is not None:
        query = query.where(rounds.c.round == only)
    query = query.order_by(rounds.c.round.desc(), rounds.c.attempt.desc()).limit(limit)
    return fetch_all(connection, Round, query)[::-1]


def members_of(connection: Connection, run_id: str, round_number: int, attempt: int) -> tuple[Member, ...]:
    """The members of an attempt, by participant."""
    query = select_all(Member, members).where(
        members.c.run_id == run_id, members.c.round == round_number, members.c.attempt == attempt
    )
    return fetch_all(connection, Member, query.order_by(members.c.participant))


def participations(connection: Connection, run_id: str, *, since: int = 0) -> dict[str, tuple[int, int]]:
    """For each participant of a run, the number of released train rounds with its update, and the newest of them.

    Covers rounds from number ``since`` on, and counts refused updates too. Participants without updates are left out.
    """
    query = (
        select(members.c.participant, func.count(), func.max(members.c.round))
        .join(
            rounds,
            (rounds.c.run_id == members.c.run_id)
            & (rounds.c.round == members.c.round)
            & (rounds.c.attempt == members.c.attempt),
        )
        .where(members.c.run_id == run_id, members.c.status.in_(_SENT), rounds.c.kind == _TRAIN)
        .where(rounds.c.phase == _RELEASED, members.c.round >= since)
        .group_by(members.c.participant)
    )
    return {name: (times, last) for name, times, last in connection.execute(query)}
