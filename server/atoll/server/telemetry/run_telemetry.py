"""The server's observer of runs: passes events on to metrics, log and traces."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from atoll.server.telemetry.observer import NO_OBSERVER, Observer, StoredEvents
from atoll.server.telemetry.round_log import log_stored
from atoll.server.telemetry.rounds import RoundFigures

if TYPE_CHECKING:
    from atoll.server.rounds import RoundKey

log = logging.getLogger(__name__)


class RunTelemetry(Observer):
    """See ``Observer``. An error in metrics, log or traces is logged and does not affect runs."""

    def __init__(self, rounds: RoundFigures, tracer: Observer | None = None) -> None:
        self._rounds = rounds
        self._tracer = tracer or NO_OBSERVER

    def stored(self, stored: StoredEvents) -> None:
        """See ``Observer``."""
        for pass_on in (self._rounds.stored, log_stored, self._tracer.stored):
            try:
                pass_on(stored)
            except Exception:
                log.exception("durable events are missing in metrics, log or traces")

    def working(self, run: str, step: str, key: RoundKey | None, what: str) -> contextlib.AbstractContextManager[None]:
        """See ``Observer``."""
        return self._tracer.working(run, step, key, what)

    def traceparent(self, run: str, key: RoundKey, participant: str) -> str:
        """See ``Observer``."""
        return self._tracer.traceparent(run, key, participant)

    def retried(self, step: str) -> None:
        """See ``Observer``."""
        self._rounds.retried(step)
