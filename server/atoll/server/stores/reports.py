"""Acknowledged reports: at most one per participant and attempt of a round; never replaced."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, update

from atoll.server.rounds import RoundKey
from atoll.server.stores.columns import NamedNumbers
from atoll.server.stores.dialects import insert_all_new, insert_new
from atoll.server.stores.errors import RecordMissingError, ReportConflictError
from atoll.server.stores.row_conversion import fetch_all, fetch_one, select_all, to_row
from atoll.server.stores.schema import reports


@dataclass(frozen=True)
class Report:
    """One acknowledged report.

    ``digest`` is the update's (empty for an evaluation), ``node`` the ingest node that holds it, ``disposition`` the
    answer to the participant ("dropped" once the server has found its update damaged), ``counted`` whether a released
    sum contains it.
    """

    run_id: str
    round: int
    attempt: int
    participant: str
    digest: str
    upload_id: str
    weight: int
    node: str
    received_at: float
    disposition: str
    payload_bytes: int = 0
    norm: float = 0.0
    counted: bool = False
    metrics: NamedNumbers = ()
    upload_at: float | None = None
    folded_at: float | None = None
    claimed_s: NamedNumbers = ()


# A round needs each of these; building a statement costs more than running it.
_OF_ATTEMPT = select_all(Report, reports).where(
    reports.c.run_id == bindparam("run"), reports.c.round == bindparam("at"), reports.c.attempt == bindparam("try")
)
_IN_ORDER = _OF_ATTEMPT.order_by(reports.c.participant)
_ONE = _OF_ATTEMPT.where(reports.c.participant == bindparam("who"))
_COUNT = (
    update(reports)
    .where(
        reports.c.run_id == bindparam("of_run"),
        reports.c.round == bindparam("of_round"),
        reports.c.attempt == bindparam("of_attempt"),
        reports.c.participant == bindparam("of_participant"),
    )
    .values(counted=True, folded_at=bindparam("since"))
)


@dataclass(frozen=True)
class Recorded:
    """The recorded report, and whether this call recorded it."""

    report: Report
    is_new: bool


def record(connection: Connection, report: Report) -> Recorded:
    """Record a report; a repetition (same digest and weight) returns the recorded one.

    Raises:
        ReportConflictError: if another report is recorded for this participant and attempt.
    """
    if insert_new(connection, reports, to_row(report)):
        return Recorded(report, is_new=True)
    standing = get(connection, report.run_id, report.round, report.attempt, report.participant)
    if standing is None:
        raise RecordMissingError("report", report.participant)
    if (standing.digest, standing.weight) != (report.digest, report.weight):
        raise ReportConflictError(
            f"participant {report.participant} has reported update {standing.digest[:16]!r} with weight "
            f"{standing.weight} for round {RoundKey(report.round, report.attempt)}; now it sends "
            f"{report.digest[:16]!r} with weight {report.weight}",
            "the first report counts; report once per round",
        )
    return Recorded(standing, is_new=False)


def record_all(connection: Connection, new: Sequence[Report]) -> None:
    """Like ``record``, for many reports: in one statement, unless one of them is already recorded."""
    if len(new) > 1 and insert_all_new(connection, reports, [to_row(report) for report in new]):
        return
    for report in new:
        record(connection, report)


def get(connection: Connection, run_id: str, round_number: int, attempt: int, participant: str) -> Report | None:
    """One report, or None."""
    values = {"run": run_id, "at": round_number, "try": attempt, "who": participant}
    return fetch_one(connection, Report, _ONE, values)


def of_attempt(connection: Connection, run_id: str, round_number: int, attempt: int) -> tuple[Report, ...]:
    """The reports of an attempt, by participant."""
    return fetch_all(connection, Report, _IN_ORDER, {"run": run_id, "at": round_number, "try": attempt})


def mark_counted(
    connection: Connection,
    run_id: str,
    keys: Collection[tuple[int, int, str]],
    folded_at: Mapping[tuple[int, int, str], float],
) -> None:
    """Record that a released sum contains these reports, by (round, attempt, participant), and when each was added."""
    if not keys:
        return
    connection.execute(
        _COUNT,
        [
            {
                "of_run": run_id,
                "of_round": key[0],
                "of_attempt": key[1],
                "of_participant": key[2],
                "since": folded_at.get(key),
            }
            for key in keys
        ],
    )


def drop(connection: Connection, run_id: str, key: tuple[int, int], participant: str, *, disposition: str) -> None:
    """Record that no sum will include a report, if there is one; ``key`` is (round, attempt)."""
    this = (
        (reports.c.run_id == run_id)
        & (reports.c.round == key[0])
        & (reports.c.attempt == key[1])
        & (reports.c.participant == participant)
    )
    connection.execute(update(reports).where(this).values(disposition=disposition, counted=False))
