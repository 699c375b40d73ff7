"""Histories of participants: online hours, report times and numbers of draws, for samplers and windows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam

from atoll.server.stores.dialects import upsert
from atoll.server.stores.row_conversion import fetch_all, select_all, to_row
from atoll.server.stores.schema import history

HOURS = 24
REPORTS_KEPT = 16
_MAX_NAMES = 500  # names per query, since databases limit the parameters of a statement


@dataclass(frozen=True)
class ParticipantHistory:
    """The history of one participant, of bounded size.

    ``online_s`` holds 24 numbers: seconds seen online in each hour of the day (UTC). ``report_s`` has the seconds from
    invitation to report of its last reports, oldest first, at most ``REPORTS_KEPT``.

    Raises:
        ValueError: if either has another length.
    """

    participant: str
    updated_at: float
    online_s: tuple[float, ...] = (0.0,) * HOURS
    report_s: tuple[float, ...] = ()
    times_selected: int = 0
    times_reported: int = 0
    last_selected_at: float | None = None

    def __post_init__(self) -> None:
        if len(self.online_s) != HOURS or len(self.report_s) > REPORTS_KEPT:
            raise ValueError(
                f"history of {self.participant}: {len(self.online_s)} online hours and {len(self.report_s)} reports, "
                f"expected {HOURS} and at most {REPORTS_KEPT}"
            )


# cached, since a round needs it, and building a statement costs more than running it
_NAMED = select_all(ParticipantHistory, history).where(history.c.participant.in_(bindparam("names", expanding=True)))


def put(connection: Connection, records: Iterable[ParticipantHistory]) -> None:
    """Insert or replace histories; the participants must exist."""
    upsert(connection, history, [to_row(record) for record in records])


def of(connection: Connection, participants: Collection[str]) -> dict[str, ParticipantHistory]:
    """The histories of these participants; those without one are left out."""
    names = sorted(participants)
    found: dict[str, ParticipantHistory] = {}
    for at in range(0, len(names), _MAX_NAMES):
        chosen = {"names": names[at : at + _MAX_NAMES]}
        found.update((one.participant, one) for one in fetch_all(connection, ParticipantHistory, _NAMED, chosen))
    return found
