"""Queries of the server for the pages, with a cache of answers that no longer change. Thread-safe."""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from atoll.operator import Myself, Operator, ParticipantSummary, RoundSummary, RunDetail
from atoll.operator.errors import UnknownCallError
from atoll.operator.history import ENDED_PHASES, Rounds

MAX_KEPT_RUNS = 16
"""Maximum number of runs whose rounds are cached, about 2 MB for 1,000 rounds."""
MAX_RECENT_MEMBERS = 2000
"""Maximum number of members that are searched for members that did not count."""
MAX_RECENT_ROUNDS = 20
MAX_ROLE_AGE_S = 5.0
"""Seconds for which the operator's role is cached. After a change of role, pages may offer wrong buttons this long, but
the server refuses what the role does not allow."""


class KnownRun:
    """The rounds of one run; a refresh fetches new rounds, and the last known one again."""

    def __init__(self, operator: Operator, run: str) -> None:
        self._run = operator.run(run)
        self._rounds = Rounds(lambda since: self._run.detail(since=since))
        self._lock = threading.Lock()
        self._recent: dict[tuple[int, int], RoundSummary] = {}

    def refreshed(self) -> RunDetail:
        """The run with its rounds, without their members."""
        with self._lock:
            return self._rounds.refreshed()

    def recent(self, detail: RunDetail) -> tuple[RoundSummary, ...]:
        """The newest rounds that have ended, with their members; those that ended since the last call are fetched."""
        ended = [item for item in detail.rounds if item.phase in ENDED_PHASES]
        wanted = [(item.round, item.attempt) for item in ended[-_rounds_to_ask(ended) :]]
        with self._lock:
            missing = [key for key in wanted if key not in self._recent]
            if missing:
                found = self._run.detail(members=True, since=missing[0][0]).rounds
                self._recent |= {(one.round, one.attempt): one for one in found if one.phase in ENDED_PHASES}
            self._recent = {key: self._recent[key] for key in wanted if key in self._recent}
            return tuple(self._recent.values())


def _rounds_to_ask(ended: Sequence[RoundSummary]) -> int:
    """Number of newest rounds, at least one, that together have at most ``MAX_RECENT_MEMBERS`` members."""
    totals = itertools.accumulate(item.cohort for item in reversed(ended))
    fitting = sum(1 for _ in itertools.takewhile(lambda total: total <= MAX_RECENT_MEMBERS, totals))
    return max(1, min(fitting, MAX_RECENT_ROUNDS))


@dataclass(frozen=True)
class Found:
    """Participants of one page, and whether there are more."""

    participants: tuple[ParticipantSummary, ...]
    more: bool


def _project_names(operator: Operator) -> tuple[str, ...]:
    """The projects to choose from; empty if the server's version has no projects.

    Raises:
        OperatorError: if the server does not say.
    """
    try:
        return tuple(one.project for one in operator.projects())
    except UnknownCallError:
        return ()


def sees_all(me: Myself) -> bool:
    """Whether the operator has a role in all projects, so that the server answers for all of them together."""
    return me.server_role != "unspecified"


class Reader:
    """Queries the server for the pages."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self._runs: OrderedDict[str, KnownRun] = OrderedDict()
        self._lock = threading.Lock()
        self._myself: tuple[Myself | None, float] = (None, 0.0)
        self._projects: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """host:port of the server."""
        return self.operator.address

    def may(self) -> Callable[[str], bool]:
        """Whether the operator's role allows an action; asked for again after ``MAX_ROLE_AGE_S``.

        Raises:
            OperatorError: if the server does not say.
        """
        return self._asked().may

    def common(self) -> Mapping[str, object]:
        """Values that every page shows: the allowed actions, and the projects to choose from.

        Raises:
            OperatorError: if the server does not say.
        """
        me = self._asked()
        return {
            "may": me.may,
            "projects": self._projects,
            "project": self.operator.project,
            "all_projects": sees_all(me),
        }

    def _asked(self) -> Myself:
        found, asked_at = self._myself
        if found is None or time.monotonic() - asked_at > MAX_ROLE_AGE_S:
            found = self.operator.whoami()
            self._projects = _project_names(self.operator)
            self._myself = found, time.monotonic()
        return found

    def run(self, run: str) -> KnownRun:
        """A run by its id; the most recently used runs are cached."""
        with self._lock:
            found = self._runs.pop(run, None) or KnownRun(self.operator, run)
            self._runs[run] = found
            while len(self._runs) > MAX_KEPT_RUNS:
                self._runs.popitem(last=False)
            return found

    def participants(self, *, connected: bool, organisation: str, start: int, size: int) -> Found:
        """Participants from number ``start`` on, at most ``size``, by id."""
        every = self.operator.participants(connected=connected, organisation=organisation)
        found = tuple(itertools.islice(every, start, start + size + 1))
        return Found(found[:size], len(found) > size)
