"""The observer of a daemon: passes on to figures what happens to runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from atoll.server.daemon.observer import Observer
from atoll.server.telemetry.rounds import RoundFigures

if TYPE_CHECKING:
    from atoll.server.daemon.stepping import Entry

log = logging.getLogger(__name__)


class Telling(Observer):
    """See ``Observer``; a figure that fails is logged and harms no run."""

    def __init__(self, rounds: RoundFigures) -> None:
        self._rounds = rounds

    def stored(self, entry: Entry) -> None:
        """See ``Observer``."""
        try:
            self._rounds.stored(entry)
        except Exception:
            log.exception("what became durable could not be counted")

    def retried(self, what: str) -> None:
        """See ``Observer``."""
        self._rounds.retried(what)
