"""Compares this machine's clock with the database server's, which all servers of a federation share.

Turns are kept by the database's clock alone. Servers judge certificates by their own clocks, and deadlines that another
server has recorded before a take-over.
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
    """How far this machine's clock is from the database server's.

    Attributes:
        ahead_s: seconds; below 0 this machine's is behind.
        within_s: half of the time that the question took.
    """

    ahead_s: float
    within_s: float

    @property
    def least_s(self) -> float:
        """Least possible difference in seconds: ``within_s`` is taken off."""
        return max(0.0, abs(self.ahead_s) - self.within_s)

    def __str__(self) -> str:
        way = "ahead of" if self.ahead_s > 0 else "behind"
        return f"this machine's clock is {abs(self.ahead_s):.1f} s {way} that of the database server"


def skew(connection: Connection, clock: Callable[[], float] = time.time) -> Skew | None:
    """Ask a database server for its time; None for SQLite, which has this machine's."""
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
