"""Admits check-ins at the rate that the server can handle, shared fairly by projects, and puts the others off."""

from __future__ import annotations

import time
from collections.abc import Callable

from atoll.server.errors import UnavailableError
from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.rpc.fair_bucket import FairBucket
from atoll.server.runs.pace_steering import PaceSteering

HEADROOM = 2.0
"""Admitted rate as a multiple of ``[check_in] per_s``, with room for unexpected returns."""
BURST_S = 2.0
"""Burst size in seconds of check-ins: a small federation that returns together is not turned away."""


class ReturnGate:
    """Refuses check-ins above the rate, cheaply: once the caller's certificate is known, before anything is read.

    A refusal says when to try again. That time is chosen at the moment of the refusal, from the number of participants
    that were refused or are expected, and not from the time that the participant got at its last check-in.

    Args:
        pace: chooses times.
        clock: seconds, monotonic.
    """

    def __init__(self, pace: PaceSteering, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace = pace
        self._clock = clock
        per_s = HEADROOM * pace.settings.per_s
        self._bucket = FairBucket(per_s * BURST_S, per_s, clock())

    def admit(self, participant: str, project: str = DEFAULT_PROJECT, *, at_work: bool) -> None:
        """Count a check-in of a project's participant. Those that a round waits for (``at_work``) are never refused.

        Raises:
            UnavailableError: if there are too many check-ins.
        """
        pace = self._pace.of(project)
        pace.arrived(participant)
        if not self._bucket.take(project, self._clock()) and not at_work:
            raise UnavailableError(
                "checkin.crowded",
                "more participants check in than the server accepts at once",
                "check in again at the time in this answer",
                retry_after_s=pace.put_off(participant),
            )
