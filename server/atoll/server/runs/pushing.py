"""Pushes invitations and stops over check-in streams, and notices members that have disconnected."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from atoll.server.rounds import (
    Event,
    Invite,
    Member,
    MemberStatus,
    Phase,
    RoundKey,
    RoundState,
    StartDeadline,
    Stop,
    WentSilent,
    wants,
)
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.invitations import Invitations
from atoll.server.runs.reporting import member_of
from atoll.server.runs.return_spread import LONGEST_DELAY, return_spread_s
from atoll.server.runs.services import Services
from atoll.server.runs.session import Session
from atoll.server.runs.tasks import Tasks
from atoll.wire.pacing import LONGEST_RETRY_S

RETURN_S = 3 * LONGEST_RETRY_S
"""Seconds that members may take to return after a restart, in addition to the spread of a large cohort."""
DEADLINE = "deadline"
_EXPECTED = frozenset({MemberStatus.INVITED, MemberStatus.TRAINING, MemberStatus.SILENT})


class Pusher:
    """Pushes invitations and stops of one run, and notices members that have disconnected.

    Args:
        driver: the run.
        invitations: makes the messages.
        services: who is connected.
        tasks: the run's timers.
        post: posts an event without waiting for it.
    """

    def __init__(
        self,
        driver: RunDriver,
        invitations: Invitations,
        services: Services,
        tasks: Tasks,
        post: Callable[[Event], None],
    ) -> None:
        self._driver = driver
        self._invitations = invitations
        self._services = services
        self._tasks = tasks
        self._post = post
        self._deadline: tuple[RoundKey, float] | None = None
        self._back_by = 0.0
        self._interrupted: RoundKey | None = None
        self._back: set[str] = set()

    def deadline(self, effect: StartDeadline, passed: Event) -> None:
        """Start the deadline timer of a round; invitations carry its remaining time.

        A round that a restart interrupted lasts until its members have had time to return with their work.
        """
        grace_s = self._back_by - self._now() if effect.key == self._interrupted else 0.0
        remaining_s = max(effect.remaining_s, grace_s)
        self._deadline = (effect.key, self._now() + remaining_s)
        self._tasks.after(DEADLINE, remaining_s, lambda: self._post(passed))

    def invite_all(self, effect: Invite) -> None:
        """Push the task to the members; wait for those that are not connected."""
        live = self._open_round()
        if live is None or live.key != effect.key:
            return
        absent = [who for who in effect.participants if self._services.sessions.get(who) is None]
        self._push(live, (member for who in effect.participants if (member := live.roster.get(who)) is not None))
        for participant in absent:  # they disconnected between the draw and now, which went unnoticed
            self.lost(participant)

    def connected(self, session: Session) -> None:
        """Invite a participant that has connected, or stop its work on rounds that are over."""
        live = self._open_round()
        member = live.roster.get(session.participant) if live is not None else None
        if self._now() < self._back_by:
            self._back.add(session.participant)
        at_work = {RoundKey(at, attempt) for run, at, attempt in session.introduction.resuming if run == self._run}
        if live is not None and member is not None and member.status in _EXPECTED:
            # a silent member must accept again
            if live.key not in at_work or member.status is MemberStatus.SILENT:
                self._push(live, (member,))
            at_work.discard(live.key)
        for key in sorted(at_work):
            self._spare(session, key)

    def stop(self, effect: Stop) -> None:
        """Tell participants to stop their work on the round."""
        state = self._driver.state
        for participant in effect.participants:
            session = self._services.sessions.get(participant)
            if session is not None:
                late_welcome = wants(state, effect.key, participant)
                session.send(self._invitations.stop(effect.key, effect.reason, late_welcome=late_welcome))

    def lost(self, participant: str, away_s: float = 0.0) -> None:
        """Note that a participant has disconnected; unless it returns in time, it counts as silent.

        Args:
            participant: its id.
            away_s: seconds that it was asked to stay away; infinite if it left with its task and comes back to report.
        """
        live = self._open_round()
        member = live.roster.get(participant) if live is not None else None
        if live is None or member is None or member.status not in _EXPECTED:
            return
        # Members spread their return by the cohort size in the invitation, which for a secret draw is the planned size.
        asked_s = LONGEST_DELAY * return_spread_s(self._invitations.announced_size(live))
        patience_s = self._services.patience_s(participant) + max(0.0, asked_s - LONGEST_RETRY_S)
        if participant not in self._back:
            patience_s = max(patience_s, self._back_by - self._now())
        patience_s += away_s
        timer = f"silence {participant}"
        if math.isinf(away_s):
            self._tasks.cancel_timer(timer)
            return
        key = live.key
        self._tasks.after(timer, patience_s, lambda: self._fell_silent(key, participant, patience_s))

    def expect_back(self) -> None:
        """Give all members time to reconnect after a restart."""
        live = self._open_round()
        members = 0 if live is None else self._invitations.announced_size(live)
        self._interrupted = None if live is None else live.key
        self._back_by = self._now() + RETURN_S + LONGEST_DELAY * return_spread_s(members)

    @property
    def _run(self) -> str:
        return self._driver.run

    def _open_round(self) -> RoundState | None:
        live = self._driver.state.round
        return live if live is not None and live.phase is Phase.OPEN else None

    def _push(self, live: RoundState, members: Iterable[Member]) -> None:
        """Push the round's task."""
        state, remaining_s = self._driver.state, self._remaining_s(live)
        for member in members:
            session = self._services.sessions.get(member.participant)
            if session is not None and member.status in _EXPECTED:
                traceparent = self._services.observer.traceparent(self._run, live.key, member.participant)
                session.send(
                    self._invitations.for_member(state, live, member, remaining_s=remaining_s, traceparent=traceparent)
                )

    def _remaining_s(self, live: RoundState) -> float:
        """Seconds left on the deadline timer, or by the wall clock before the timer is started."""
        if self._deadline is not None and self._deadline[0] == live.key:
            return max(0.0, self._deadline[1] - self._now())
        return min(live.window_s, max(0.0, live.deadline_at - self._services.clock()))

    def _spare(self, session: Session, key: RoundKey) -> None:
        """Stop work that cannot count, unless the participant still has to ask for its receipt."""
        state = self._driver.state
        member = member_of(state, key, session.participant)
        reported = member is not None and member.status is MemberStatus.REPORTED
        if not reported and not wants(state, key, session.participant):
            session.send(self._invitations.stop(key, f"round {key} is over", late_welcome=False))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _fell_silent(self, key: RoundKey, participant: str, patience_s: float) -> None:
        if self._services.sessions.get(participant) is None:
            self._post(WentSilent(key, participant, f"the connection was lost for {patience_s:.3g} s"))
