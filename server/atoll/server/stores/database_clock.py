"""Compares this machine's clock with the database server's, which all servers of a federation share.

Turns depend only on the database's clock. By its own clock, a server judges certificates, and deadlines that another
server recorded before a take-over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, text

log = logging.getLogger(__name__)

WARN_S = 5.0
REMEDY = "set the clocks of both machines (NTP): certificates and deadlines are judged by them"


@dataclass(frozen=True)
class Skew:
    """The difference between this machine's clock and the database server's.

    Attributes:
        ahead_s: seconds that this machine's clock is ahead; negative if it is behind.
        within_s: uncertainty in seconds: half of the query's duration.
    """

    ahead_s: float
    within_s: float

    @property
    def least_s(self) -> float:
        """Minimum possible difference in seconds, after subtracting ``within_s``."""
        return max(0.0, abs(self.ahead_s) - self.within_s)

    def __str__(self) -> str:
        way = "ahead of" if self.ahead_s > 0 else "behind"
        return f"this machine's clock is {abs(self.ahead_s):.1f} s {way} that of the database server"


def skew(connection: Connection, clock: Callable[[], float] = time.time) -> Skew | None:
    """Ask a database server for its time; None for SQLite, which uses this machine's clock."""
    if connection.dialect.name != "postgresql":
        return None
    asked = clock()
    there = float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
    answered = clock()
    return Skew((asked + answered) / 2 - there, (answered - asked) / 2)


def warn_of_skew(connection: Connection, clock: Callable[[], float] = time.time) -> None:
    """Log a warning if the clocks differ by seconds."""
    found = skew(connection, clock)
    if found is not None and found.least_s >= WARN_S:
        log.warning("%s; %s", found, REMEDY)
