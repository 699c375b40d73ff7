"""Adds participants' connected time to their histories."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from concurrent.futures import Future

from atoll.server.errors import StorageError, UnavailableError
from atoll.server.runs.histories import record_online
from atoll.server.runs.services import Services
from atoll.server.runs.session import Session

log = logging.getLogger(__name__)

COUNT_ONLINE_S = 600.0
"""Seconds of connected time that may be missing from a history at a draw; a draw adds longer times first."""
COUNTED_PER_DRAW = 256
"""Maximum number of histories that one draw updates; with thousands connected, a draw must not wait for all."""


def count_online(services: Services, sessions: Iterable[Session]) -> Future[None] | None:
    """Add the time since each session was last counted to its participant's history."""
    if not services.learns:
        return None
    now, spells = services.clock(), {}
    for session in sessions:
        if session.introduction.unary:  # a participant with unary check-ins is not online between its calls
            continue
        spells[session.participant] = (session.counted_from, now)
        session.counted_from = now
    if not spells:
        return None
    try:
        stored = services.writer.submit(record_online, spells)
    except UnavailableError as error:
        log.warning("time online not counted: %s", error.logged)
        return None
    stored.add_done_callback(_log_failure)
    return stored


def count_overdue(services: Services, sessions: Iterable[Session]) -> None:
    """Like ``count_online``, for up to ``COUNTED_PER_DRAW`` sessions that are due."""
    if not services.learns:
        return
    due = services.clock() - COUNT_ONLINE_S
    overdue = (session for session in sessions if session.counted_from <= due and not session.introduction.unary)
    count_online(services, itertools.islice(overdue, COUNTED_PER_DRAW))


def _log_failure(stored: Future[None]) -> None:
    error = None if stored.cancelled() else stored.exception()
    if isinstance(error, StorageError):
        log.warning("time online not counted: %s", error.logged)
    elif error is not None:
        log.error("time online not counted", exc_info=error)
