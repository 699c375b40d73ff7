"""The observer of a daemon: passes on to figures, log and traces what happens to runs."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from atoll.server.daemon.observer import NOBODY, Observer
from atoll.server.telemetry.narrator import narrate
from atoll.server.telemetry.rounds import RoundFigures

if TYPE_CHECKING:
    from atoll.server.daemon.stepping import Entry
    from atoll.server.daemon.tasks import Job
    from atoll.server.rounds import RoundKey

log = logging.getLogger(__name__)


class Telling(Observer):
    """See ``Observer``; whoever fails to listen is logged and harms no run."""

    def __init__(self, rounds: RoundFigures, tracer: Observer | None = None) -> None:
        self._rounds = rounds
        self._tracer = tracer or NOBODY

    def stored(self, entry: Entry) -> None:
        """See ``Observer``."""
        for tell in (self._rounds.stored, narrate, self._tracer.stored):
            try:
                tell(entry)
            except Exception:
                log.exception("what became durable could not be told of")

    def working(self, run: str, job: Job) -> contextlib.AbstractContextManager[None]:
        """See ``Observer``."""
        return self._tracer.working(run, job)

    def traceparent(self, run: str, key: RoundKey, participant: str) -> str:
        """See ``Observer``."""
        return self._tracer.traceparent(run, key, participant)

    def retried(self, what: str) -> None:
        """See ``Observer``."""
        self._rounds.retried(what)
