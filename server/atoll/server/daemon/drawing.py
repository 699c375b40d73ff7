"""Drawing cohorts: who is there, what is known of them, and how long to wait for them."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from atoll.server.daemon.services import Services
from atoll.server.daemon.sessions import Session
from atoll.server.jobs import JobSpec
from atoll.server.rounds import CohortDrawn, DrawCohort, PrepareRound, RoundKind


class CohortPool:
    """Draws from the participants that are connected and not at work for another run.

    Args:
        services: sessions and stores.
        busy: the participants that runs other than the given one expect a report from.
    """

    def __init__(self, services: Services, busy: Callable[[str], set[str]]) -> None:
        self._services = services
        self._busy = busy

    async def draw(self, effect: DrawCohort, run: str, spec: JobSpec) -> CohortDrawn:
        """Wait until enough participants are there, then draw."""
        while len(there := self._there(effect, run, spec)) < max(spec.cohort.min_available, effect.needed):
            await self._services.sessions.changed().wait()
        seed = spec.cohort.seed if spec.cohort.seed is not None else secrets.randbits(63)
        import random

        names = sorted(s.participant for s in there)
        chosen = random.Random(f"{seed}{effect.key}").sample(names, min(len(names), effect.invited))
        ex = {s.participant: s.introduction.examples for s in there}
        return CohortDrawn(effect.key, tuple((n, ex[n]) for n in sorted(chosen)), len(there), spec.cohort.sampler, seed)

    async def report_window_s(self, effect: PrepareRound, spec: JobSpec) -> float:
        return spec.straggler.report_window_s

    def count_online(self, sessions: list[Session]) -> None:
        """Provisional."""
        del sessions

    def _there(self, effect: DrawCohort, run: str, spec: JobSpec) -> list[Session]:
        busy = self._busy(run)
        encoding = spec.aggregation.wire_encoding
        train = effect.kind is RoundKind.TRAIN
        return [
            session
            for session in self._services.sessions.all()
            if session.participant not in busy
            and session.participant not in effect.excluded
            and (session.introduction.examples > 0 if train else session.introduction.can_evaluate)
            and (not train or encoding in session.introduction.encodings)
        ]
