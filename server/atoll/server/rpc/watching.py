"""The open round for watchers: each message has only the members that changed since the last one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from atoll.server.rounds import Roster, RoundKey, RoundState, RunState
from atoll.server.rpc import bounds, views
from atoll.wire.v1 import control_pb2

PAGE_MEMBERS = 500
"""Maximum number of members in one message."""


@dataclass(frozen=True)
class LiveRound:
    """A run's round at one moment. It is immutable, so a thread can make messages from it.

    Attributes:
        state: the run.
        live: its round.
        server_metrics: the results of the operator's evaluator.
        numbering: numbers the job's rounds.
        at: epoch seconds.
    """

    state: RunState
    live: RoundState
    server_metrics: Mapping[str, float]
    numbering: views.RoundNumbering
    at: float

    def summary(self, *, members: bool) -> control_pb2.RoundSummary:
        """The round, with its members if requested, within the bounds of one message."""
        found = views.live_round(self.state, self.live, self.server_metrics, self.at)
        if members:
            found.members.extend(views.live_member(member, self.live) for member in self.live.roster)
        return bounds.fitted(self.numbering.numbered(found, self.live.version))


@dataclass
class ShownMembers:
    """The members of a round as last sent to one watcher."""

    _key: RoundKey | None = None
    _roster: Roster = field(default_factory=Roster)

    def pages(self, seen: LiveRound) -> Iterator[control_pb2.RoundSummary]:
        """Yield the round with the members that changed since the watcher's last message, in at least one page.

        Pages are made lazily.
        """
        roster = seen.live.roster
        before = self._roster if self._key == seen.live.key else Roster()
        self._key, self._roster = seen.live.key, roster
        head = seen.summary(members=False)
        names = sorted(roster.changed_since(before))
        for at in range(0, max(1, len(names)), PAGE_MEMBERS):
            page = control_pb2.RoundSummary()
            page.CopyFrom(head)
            found = (roster.get(name) for name in names[at : at + PAGE_MEMBERS])
            page.members.extend(views.live_member(member, seen.live) for member in found if member is not None)
            yield bounds.fitted(page)
