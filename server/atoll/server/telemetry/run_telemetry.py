"""The server's observer of runs: passes events on to metrics, log and traces."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from atoll.processes.otel_environment import traces_wanted
from atoll.server.telemetry.observer import NO_OBSERVER, Observer, StoredEvents
from atoll.server.telemetry.round_log import log_stored
from atoll.server.telemetry.rounds import RoundFigures
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from atoll.server.rounds import RoundKey
    from atoll.server.telemetry.otel import RoundTracer

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


def tracer_of(environment: Mapping[str, str] = os.environ) -> RoundTracer | None:
    """The tracer that the environment configures; None if there is none, or OpenTelemetry is not installed."""
    if not traces_wanted(environment):
        return None
    try:
        from atoll.server.telemetry.otel import RoundTracer  # noqa: PLC0415  # loads OpenTelemetry, an extra
    except ModuleNotFoundError as error:
        log.warning("traces are wanted, but %s is not installed: %s", error.name, install_hint("otel"))
        return None
    return RoundTracer()
