"""Participants without a stream in virtual time: the server's own decisions, and the client's own delays."""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll.client._connection.backoff import Backoff
from atoll.client._session.unary_check_in import until_next_s
from atoll.client.limits import Limits
from atoll.server.config.check_in_settings import DEFAULT_CHECK_INS, CheckInSettings
from atoll.server.errors import UnavailableError
from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.rpc.return_gate import ReturnGate
from atoll.server.runs.pace_steering import PaceSteering

MANY = 100_000
MINUTES_10 = 600.0
OUTAGE_S = 180.0


@dataclass
class Phone:
    """A participant without a stream, with the client's behaviour."""

    name: str
    backoff: Backoff
    project: str = DEFAULT_PROJECT
    spread_s: float = 0.0


@dataclass
class VirtualFederation:
    """Phones and the server's pace steering, without sockets and without waiting.

    Attributes:
        count: phones of the project ``default``.
        others: numbers of phones of further projects.
        attempts: check-ins that reached the server, by second.
        admitted: check-ins that the server did not put off.
        of: those that it did not put off, of each project.
    """

    count: int
    others: Mapping[str, int] = field(default_factory=dict)
    settings: CheckInSettings = field(default_factory=CheckInSettings)
    now: float = 1_000_000.0
    outage: tuple[float, float] = (0.0, 0.0)
    attempts: Counter[int] = field(default_factory=Counter)
    admitted: Counter[int] = field(default_factory=Counter)
    of: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def __post_init__(self) -> None:
        self.began = self.now
        self.chance = random.Random(7)
        self.restart()
        limits = Limits()
        projects = [DEFAULT_PROJECT] * self.count
        projects += [name for name, count in self.others.items() for _ in range(count)]
        self.phones = [
            Phone(f"p{number}", Backoff(limits.backoff_base_s, limits.backoff_cap_s, random.Random(number)), project)
            for number, project in enumerate(projects)
        ]
        self.queue: list[tuple[float, int]] = []

    def restart(self) -> None:
        """Replace the server's process, which loses its memory."""
        self.pace = PaceSteering(lambda: self.now, self.settings, random.Random(1))
        self.gate = ReturnGate(self.pace, lambda: self.now)

    def come_over(self, seconds: float) -> None:
        """Let all phones check in for the first time, spread evenly over this many seconds."""
        self.queue = [(self.now + self.chance.uniform(0.0, seconds), number) for number in range(len(self.phones))]
        heapq.heapify(self.queue)

    def until(self, second: float) -> None:
        """Let time pass up to a second after the beginning."""
        while self.queue and self.queue[0][0] < self.began + second:
            self.now, number = heapq.heappop(self.queue)
            heapq.heappush(self.queue, (self.now + self._next_s(self.phones[number]), number))
        self.now = self.began + second

    def _next_s(self, phone: Phone) -> float:
        from_s, to_s = self.outage
        if from_s <= self.now - self.began < to_s:
            return phone.backoff.next_s(phone.spread_s)
        second = int(self.now - self.began)
        self.attempts[second] += 1
        try:
            self.gate.admit(phone.name, phone.project, at_work=False)
        except UnavailableError as refusal:
            asked_s = refusal.detail.retry_after_s
            assert asked_s is not None
            return max(phone.backoff.next_s(), asked_s * self.chance.uniform(1.0, 1.25))
        self.admitted[second] += 1
        self.of[phone.project][second] += 1
        phone.backoff.reset()
        pace = self.pace.of(phone.project)
        phone.spread_s = min(pace.return_spread_s, Limits().return_spread_s)
        return until_next_s(pace.next_return(phone.name).after_s, self.chance.random())

    def rates(self, counted: Counter[int], first: int, last: int) -> tuple[float, int]:
        """Mean and maximum per second."""
        found = [counted[second] for second in range(first, last)]
        return sum(found) / len(found), max(found)


def rate_for(count: int) -> CheckInSettings:
    """The default rate for ``MANY``, and as much less for fewer, so that each returns as often."""
    return CheckInSettings(per_s=CheckInSettings().per_s * count / MANY)


def many(count: int = MANY, settings: CheckInSettings = DEFAULT_CHECK_INS) -> VirtualFederation:
    """A population that has found its pace, with a run that draws one in a hundred."""
    found = VirtualFederation(count, settings=settings)
    found.pace.need("r", count // 100)
    found.come_over(400.0)
    found.until(MINUTES_10)
    return found


def after_an_outage(
    *, forgets: bool, count: int = MANY, settings: CheckInSettings = DEFAULT_CHECK_INS
) -> VirtualFederation:
    """Ten minutes to find the pace, an outage, then ten minutes; ``forgets`` uses a new process afterwards."""
    there = many(count, settings)
    there.outage = (MINUTES_10, MINUTES_10 + OUTAGE_S)
    there.until(MINUTES_10 + OUTAGE_S)
    if forgets:
        there.restart()
        there.pace.need("r", count // 100)
    there.until(MINUTES_10 + OUTAGE_S + MINUTES_10)
    return there
