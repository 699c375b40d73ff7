"""One draw of a run: which participants it may draw, and how many it needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from atoll.server.jobs import JobSpec, participation_limit_of
from atoll.server.jobs.refusals import has_secret_draw
from atoll.server.rounds import DrawCohort, RoundKind
from atoll.server.runs.cohort import able_among, is_able
from atoll.server.runs.session import Session
from atoll.server.runs.standings import Judge, Standing
from atoll.server.sampling import sampler_named


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw of a run.

    Attributes:
        run: the run's id.
        effect: the round.
        spec: the run's job.
        barred: participants that the run's participation limit excludes from this draw.
    """

    run: str
    effect: DrawCohort
    spec: JobSpec
    barred: frozenset[str] = frozenset()

    @property
    def evaluates(self) -> bool:
        """Whether the round is an evaluation."""
        return self.effect.kind is RoundKind.EVALUATE

    @property
    def is_secret(self) -> bool:
        """Whether the run's privacy relies on the secrecy of the draw."""
        return has_secret_draw(self.spec)

    @property
    def looks_back(self) -> bool:
        """Whether the sampler or a participation limit looks at earlier rounds."""
        return sampler_named(self.spec.cohort.sampler).uses_history or participation_limit_of(self.spec) is not None

    @property
    def wanted(self) -> int:
        """Number of participants that the job wants to draw from."""
        if not self.effect.invited:
            return 0
        return max(self.spec.cohort.min_available - len(self.effect.excluded), self.effect.needed)

    def available(self, *, free: int, idle: int) -> int:
        """The number to compare with ``wanted``: an evaluation also counts idle participants that cannot evaluate."""
        return idle if self.evaluates else free

    def is_able(self, session: Session) -> bool:
        """Whether the participant is able to take part in the round."""
        return is_able(session, self.effect.kind, self.spec)

    def free_among(self, idle: list[Session]) -> list[Session]:
        """The participants that can be drawn, of those that no other run has taken."""
        excluded = self.barred.union(self.effect.excluded)
        free = [one for one in idle if one.participant not in excluded] if excluded else idle
        return able_among(free, self.effect.kind, self.spec)

    def judge(self) -> Judge:
        """A function that returns the standing of one participant."""
        excluded, encoding = self.barred.union(self.effect.excluded), self.spec.aggregation.wire_encoding

        def judged(session: Session, taken: Collection[str]) -> Standing:
            idle = session.participant not in taken
            return Standing(
                free=idle and session.participant not in excluded and self.is_able(session),
                idle=idle,
                unfit=encoding not in session.introduction.encodings,
                resting=session.participant in self.barred,
            )

        return judged
