"""Who is told of what happens to runs: metrics and traces. Nobody, unless the daemon says so."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.server.daemon.stepping import Entry
    from atoll.server.daemon.tasks import Job
    from atoll.server.rounds import RoundKey


class Observer:
    """Is told, and changes nothing; must not raise. This one does not listen."""

    def stored(self, entry: Entry) -> None:
        """A run's events are durable."""

    def working(self, run: str, job: Job) -> contextlib.AbstractContextManager[None]:
        """A step of a run is under way within."""
        del run, job
        return contextlib.nullcontext()

    def traceparent(self, run: str, key: RoundKey, participant: str) -> str:
        """W3C trace context for what a participant does for a round; empty without traces."""
        del run, key, participant
        return ""

    def retried(self, what: str) -> None:
        """Disk, database or a worker refused a step for now."""


NOBODY = Observer()
