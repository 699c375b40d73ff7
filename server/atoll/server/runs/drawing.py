"""Draws cohorts from the connected participants, and waits until enough of them are available."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.jobs import JobSpec, expected_window_s, participation_limit_of, report_window_of
from atoll.server.rounds import CohortDrawn, PrepareRound
from atoll.server.runs.cohort import Drawable, cohort_from, takes_unary
from atoll.server.runs.draw import Draw
from atoll.server.runs.online import count_overdue
from atoll.server.runs.participations import Participations
from atoll.server.runs.private.draw_lock import DrawLock
from atoll.server.runs.required import absent_names
from atoll.server.runs.run_privacy import RunPrivacy
from atoll.server.runs.services import Services
from atoll.server.runs.session import Session
from atoll.server.runs.standings import Count, Standings
from atoll.server.sampling import History, sampler_named
from atoll.server.sampling.report_window import FixedReportWindow, report_window_s
from atoll.server.stores import ParticipantHistory, history

log = logging.getLogger(__name__)


ROUND = "a round"
"""What a full disk has no room for: a round that begins there would lose its members' work."""


class OtherRuns(Protocol):
    """The other runs of the server."""

    def busy(self, apart_from: str, among: Collection[str] | None = None) -> set[str]:
        """Participants that runs other than ``apart_from`` expect a report from; ``among`` limits the search."""
        ...

    def secret(self, apart_from: str) -> str:
        """Another run of the same project with a round of a secret draw (see ``DrawLock``); "" if there is none."""
        ...


class Budget(Protocol):
    """A round's cost; see ``RunPrivacy``."""

    @property
    def is_free(self) -> bool:
        """Whether a round costs nothing, so that a draw need not wait for a reservation."""
        ...

    async def reserve(self) -> None:
        """Reserve the cost of the next round; raises ``BudgetSpentError`` if the budget does not cover it."""
        ...

    def release_reservation(self) -> None:
        """Release the reservation: the round does not begin now."""
        ...


FREE: Budget = RunPrivacy()
"""The budget of rounds that cost nothing."""
Waiting = Callable[[], Coroutine[Any, Any, CohortDrawn]]
"""Waits until a cohort can be drawn, then draws it; may be called again if it fails."""


def looks_back(spec: JobSpec) -> bool:
    """Whether draws or report windows of the job depend on the histories of participants."""
    fixed = isinstance(report_window_of(spec), FixedReportWindow)
    return not fixed or sampler_named(spec.cohort.sampler).uses_history


class CohortPool:
    """Draws from a project's connected participants, except those that work for another run.

    Args:
        services: sessions and stores.
        runs: knows which participants work for other runs.
        project: the project whose participants are drawn.
    """

    def __init__(self, services: Services, runs: OtherRuns, project: str = DEFAULT_PROJECT) -> None:
        self._services = services
        self._project = project
        self._sessions = services.sessions.of(project)
        self._runs = runs
        self._drawn: dict[str, frozenset[str]] = {}
        self._draw_lock = DrawLock(runs.secret, services.sessions.touch)
        self._drawable: dict[str, Drawable] = {}
        self._participations = Participations(services.reader)

    def draw(
        self, draw: Draw, on_wait: Callable[[str], None] = log.debug, budget: Budget = FREE
    ) -> CohortDrawn | Waiting:
        """Draw a cohort, or return a wait for one. Drawn participants are reserved for the run until ``finish_draw``.

        A cohort is drawn at once if enough participants are connected, rounds cost nothing, and neither the sampler nor
        a participation bound looks at earlier rounds.

        While it waits, ``on_wait`` is called with the reason why connected participants cannot be drawn, or with "" if
        waiting alone can solve it. No budget is reserved meanwhile: other runs need it too.

        Raises:
            ServerError: (while waiting) if the participants' history cannot be read, the budget is spent, or the disk
                has no room for a round.
        """
        if budget.is_free and not draw.looks_back and (there := self._drawable_now(draw, draw.wanted)) is not None:
            self._begin(draw, there)
            drawn = self._drawn_from(draw, there, {})
            if drawn is not None:
                return drawn
        return partial(self._wait_and_draw, draw, on_wait, budget)

    async def _wait_and_draw(self, draw: Draw, on_wait: Callable[[str], None], budget: Budget) -> CohortDrawn:
        draw = await self._with_barred(draw)
        if not budget.is_free and self._drawable_now(draw, draw.wanted) is None:
            await budget.reserve()  # a run without budget must pause now, not when enough participants connect
            budget.release_reservation()
        at_least = 0 if draw.evaluates else draw.wanted  # an evaluation takes the participants that came in time
        while True:
            await self._enough(draw, on_wait)
            await self._services.call(self._services.room.require, ROUND)  # the disk may have filled meanwhile
            await budget.reserve()
            there = self._drawable_now(draw, at_least)
            if there is not None:
                self._begin(draw, there)
                drawn = self._drawn_from(draw, there, await self._known(draw, there))
                if drawn is not None:
                    return drawn
            budget.release_reservation()

    def _begin(self, draw: Draw, there: list[Session]) -> None:
        """Take the draw lock for the run, until ``finish_draw``."""
        self._draw_lock.begin(draw.run, secret=draw.is_secret)
        count_overdue(self._services, there)

    def _drawn_from(self, draw: Draw, there: list[Session], known: Mapping[str, History]) -> CohortDrawn | None:
        drawable = self._drawable.setdefault(draw.run, Drawable())
        drawn = cohort_from(there, draw.effect, draw.spec, known, self._services.clock(), drawable)
        return drawn if self._reserve(draw.run, drawn) else None

    def _reserve(self, run: str, drawn: CohortDrawn) -> bool:
        """Reserve the drawn members; returns False if another run has drawn some of them meanwhile."""
        members = frozenset(participant for participant, _ in drawn.members)
        if members & self._taken(run):
            self._draw_lock.end(run)
            return False
        self._drawn[run] = members
        self._services.sessions.touch(members)
        return True

    def has_drawn(self, participant: str) -> bool:
        """Whether a draw that is not yet in its run's state includes this participant."""
        return any(participant in drawn for drawn in self._drawn.values())

    def forget(self, run: str) -> None:
        """Forget a run that has ended."""
        self.finish_draw(run)
        self._drawable.pop(run, None)
        self._participations.forget(run)

    def finish_draw(self, run: str) -> None:
        """Release the draw lock: the run's last draw is in its state, or was given up."""
        self._services.sessions.touch(self._drawn.pop(run, ()))
        self._draw_lock.end(run)

    async def _with_barred(self, draw: Draw) -> Draw:
        """The draw with the participants that the run's participation limit excludes from it."""
        limit = participation_limit_of(draw.spec)
        if limit is None:
            return draw
        past = await self._participations.before(draw.run, draw.effect.key.round)
        return replace(draw, barred=limit.barred(past, draw.effect.key.round))

    def _taken(self, apart_from: str, among: Collection[str] | None = None) -> set[str]:
        """Participants that other runs expect a report from or have just drawn; ``among`` limits the search."""
        drawn = (names for run, names in self._drawn.items() if run != apart_from)
        chosen = drawn if among is None else (names.intersection(among) for names in drawn)
        return self._runs.busy(apart_from, among).union(*chosen)

    async def _enough(self, draw: Draw, on_wait: Callable[[str], None]) -> None:
        """Wait until enough participants are available for the job to draw from.

        A participant whose carried update waits counts as available but is not drawn; if carried updates suffice, there
        is nothing to wait for. An evaluation must not hang the run: it waits for at most one report window, and not for
        connected participants that cannot evaluate.
        """
        patience = expected_window_s(draw.spec) if draw.evaluates else None
        watch = self._services.sessions.watch
        with watch(takes_unary=takes_unary(draw.spec), project=self._project) as changes:
            standings = Standings(self._sessions, changes, partial(self._taken, draw.run), draw.judge())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while not self._is_enough(draw, count := standings.count()):
                        on_wait(self._draw_lock.waits_for(draw.run) or self._held_back(draw, count))
                        await changes.wait()
                    return
            while not self._has_turn(draw):
                on_wait(self._draw_lock.waits_for(draw.run))
                changes.take()
                await changes.wait()

    def _is_enough(self, draw: Draw, count: Count) -> bool:
        """Whether the run may draw now, by the counts of a waiting run; does not look at every participant."""
        return draw.available(free=count.free, idle=count.idle) >= draw.wanted and self._may_draw(draw)

    def _drawable_now(self, draw: Draw, at_least: int) -> list[Session] | None:
        """The participants that can be drawn; None if too few are available, or the run may not draw now.

        This looks at every connected participant of the project.
        """
        if len(self._sessions) < at_least or not self._may_draw(draw):
            return None
        idle = self._idle(draw.run)
        there = draw.free_among(idle)
        return there if draw.available(free=len(there), idle=len(idle)) >= at_least else None

    def _may_draw(self, draw: Draw) -> bool:
        """Whether no other run holds the draw lock, and each required name has a participant."""
        return self._has_turn(draw) and not self._absent(draw)

    def _has_turn(self, draw: Draw) -> bool:
        return self._draw_lock.may_begin(draw.run, secret=draw.is_secret)

    def _absent(self, draw: Draw) -> tuple[str, ...]:
        """The required names for which no participant can be drawn now.

        A waiting run calls this at every change, so only the participants of these names are looked at.
        """
        names = draw.spec.cohort.required_names
        if not names:
            return ()
        there = {one.participant: one for name in names for one in self._sessions.named(name)}
        connected, taken = list(there.values()), self._taken(draw.run, there)
        waited_for = draw.free_among([one for one in connected if one.participant not in taken])
        waited_for += [one for one in connected if one.participant in draw.effect.excluded]  # its update already counts
        unable = (one for one in connected if not draw.is_able(one))
        return absent_names(draw.effect, draw.spec, able=waited_for, unable=unable)

    def _held_back(self, draw: Draw, count: Count) -> str:
        """The participants that cannot be drawn, why, and the remedy; "" if all can."""
        encoding, connected = draw.spec.aggregation.wire_encoding, len(self._sessions)
        if absent := self._absent(draw):
            return f"waiting for {', '.join(absent)}, which every round needs (cohort.required)"
        if count.unfit and not draw.evaluates:
            return (
                f"{count.unfit} of {connected} participants connected cannot send {encoding.name.lower()}: "
                "upgrade their clients, or submit the job with another aggregation.encoding"
            )
        if self._sessions.has_unary and not takes_unary(draw.spec):
            return (
                "participants that check in without a stream are not drawn: the privacy of this run "
                "counts on secret draws (cohort.sampler); start their clients with streams, or submit the job with a "
                "sampler whose draws are public"
            )
        limit = participation_limit_of(draw.spec)
        if limit is None or not count.resting:
            return ""
        return (
            f"{count.resting} of {connected} participants connected may not be drawn now: at most {limit.most} rounds "
            f"each, {limit.separation} apart (privacy.max_participations, privacy.min_separation)"
        )

    async def report_window_s(self, effect: PrepareRound, spec: JobSpec) -> float:
        """Seconds from the invitation to the deadline, given how long the members' earlier reports took."""
        names = [participant for participant, _ in effect.members]
        known = await self._services.reader.run(history.of, names)
        past = [known[name].report_s if name in known else () for name in names]
        return report_window_s(report_window_of(spec), past)

    async def _known(self, draw: Draw, there: Iterable[Session]) -> dict[str, History]:
        if not sampler_named(draw.spec.cohort.sampler).uses_history:
            return {}
        records = await self._services.reader.run(history.of, [session.participant for session in there])
        return {name: _history(record) for name, record in records.items()}

    def _idle(self, run: str) -> list[Session]:
        taken = self._taken(run)
        connected = self._sessions.all()
        return [session for session in connected if session.participant not in taken] if taken else connected


def _history(record: ParticipantHistory) -> History:
    return History(
        times_selected=record.times_selected,
        times_reported=record.times_reported,
        last_selected_at=record.last_selected_at,
        online_s=record.online_s,
        report_s=record.report_s,
    )
